"""A member of the group that has no partition knows, too, whether a broker answers."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from support.fleet_processes import wait_for
from support.processor_fleet import PATIENCE_S
from support.routed_topic import make_topics, topic_settings

from moescope.console.stopping import beside
from moescope.core.clock import SystemClock
from moescope.core.kafka import open_admin
from moescope.core.kafka.broker_watch import BrokerWatch
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.finish import WindowFinisher
from moescope.processors.group.joining import joined_group

if TYPE_CHECKING:
    from support.broker_choice import Broker

    from moescope.core.settings import Settings


class Member:
    """A processor on a thread of this process."""

    def __init__(self, settings: Settings, closing: ExitStack) -> None:
        self.metrics = SelfMetrics()
        self.watch = BrokerWatch(lambda _: None)
        self.stop = threading.Event()
        pipeline = closing.enter_context(
            joined_group(
                settings,
                WindowFinisher(),
                metrics=self.metrics,
                clock=SystemClock(),
                log=lambda _: None,
                watch=self.watch,
            )
        )
        closing.enter_context(
            beside(lambda stop: pipeline.run(stop=stop), self.stop, "moescope-member")
        )

    @property
    def has_partitions(self) -> bool:
        """Whether it is given any now."""
        return self.metrics.value("moescope_processor_assigned_partitions") > 0


def test_a_member_without_partitions_waits_for_its_broker(
    own_broker: Broker, topic_prefix: str
) -> None:
    """It neither reads nor commits, so nothing but the age of what it was told shows that."""
    settings = topic_settings(own_broker.bootstrap, topic_prefix, kafka__partitions=1)
    make_topics(settings)
    with ExitStack() as closing:
        members = [Member(settings, closing) for _ in range(2)]
        wait_for(
            "a member with, and one without",
            lambda: (
                sorted(each.has_partitions for each in members) == [False, True]
                and has_members(settings, 2)
            ),
            PATIENCE_S,
        )
        own_broker.pause()
        try:
            wait_for("trouble", lambda: all(each.watch.is_away for each in members), PATIENCE_S)
        finally:
            own_broker.resume()
        assert all(own_broker.bootstrap in each.watch.trouble for each in members)
        wait_for("its end", lambda: not any(each.watch.is_away for each in members), PATIENCE_S)
        for each in members:
            each.stop.set()


def has_members(settings: Settings, number: int) -> bool:
    """Whether the group has so many, and nothing is under way."""
    group = settings["kafka.group"]
    with closing(open_admin(settings)) as admin:
        found = admin.describe_groups([group])[group]
    return (found["group_state"], len(found["members"])) == ("Stable", number)
