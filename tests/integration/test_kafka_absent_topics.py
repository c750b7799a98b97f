"""Topics that are not there are named, and what makes them; no broker that answers is blamed."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from kafka.errors import KafkaTimeoutError
from support.fleet_processes import wait_for
from support.kafka_settings import kafka_settings, make_topics

from moescope.console.processor_work import run_processor
from moescope.console.stopping import beside
from moescope.console.store_work import run_store
from moescope.core.clock import SystemClock
from moescope.core.kafka import Topic, TopicMissingError, open_admin, open_consumer, topic_name
from moescope.core.kafka.absent_topics import naming_absent
from moescope.core.kafka.broker_watch import BrokerWatch
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.finish import WindowFinisher
from moescope.processors.group.joining import joined_group

if TYPE_CHECKING:
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.core.settings import Settings

PATIENCE_S = 60.0


@pytest.fixture
def settings(kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path) -> Settings:
    """Of topics that do not exist."""
    return kafka_settings(
        kafka_broker.bootstrap,
        topic_prefix,
        store__source="deltas",
        data__directory=str(tmp_path),
        kafka__connect_timeout=2.0,
    )


@pytest.mark.parametrize("command", [run_processor, run_store])
def test_a_fleet_without_topics_is_told_to_make_them(settings: Settings, command: object) -> None:
    """Both ask for the end of the control topic first."""
    assert callable(command)
    with pytest.raises(TopicMissingError) as caught:
        command(settings, threading.Event(), until_idle=True)
    assert caught.value.what == f"The topic {topic_name(settings, Topic.CONTROL)} does not exist."
    assert "topics-apply" in caught.value.next_step


def test_a_processor_names_the_topic_that_it_cannot_write_to(settings: Settings) -> None:
    """The producer waits for it as it waits for a broker; the log has the remedy, too."""
    make_topics(settings)
    deltas = topic_name(settings, Topic.DELTAS)
    with closing(open_admin(settings)) as admin:
        admin.delete_topics([deltas])
    said, stop = list[str](), threading.Event()
    watch = BrokerWatch(said.append)
    with (
        joined_group(
            settings,
            WindowFinisher(),
            metrics=SelfMetrics(),
            clock=SystemClock(),
            log=lambda _: None,
            watch=watch,
        ) as pipeline,
        beside(lambda stop: pipeline.run(stop=stop), stop, "member"),
    ):
        wait_for("its name", lambda: f"{deltas} does not exist" in watch.trouble, PATIENCE_S)
    told = [line for line in said if f"{deltas} does not exist" in line]
    assert ["topics-apply" in line for line in told] == [True], said


def test_a_topic_that_is_there_is_not_what_is_missing(settings: Settings) -> None:
    """What takes long for another reason stays what it is."""
    make_topics(settings)
    routing = topic_name(settings, Topic.ROUTING)
    with closing(open_consumer(settings)) as consumer:
        assert consumer.partitions_for_topic(routing)
        with pytest.raises(KafkaTimeoutError, match="slow"):
            take_long(consumer, routing)


def take_long(consumer: object, topic: str) -> None:
    """What a call to a broker does that has not answered in time."""
    with naming_absent(consumer, [topic]):
        raise KafkaTimeoutError("slow")
