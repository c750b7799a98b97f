"""A routing topic that is deleted and made anew while processors share it."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from support.fleet_processes import wait_for
from support.processor_fleet import SMALL_WINDOWS, emitted_to
from support.routed_topic import make_streams, make_topics, send, topic_settings

from moescope.console.processor_work import run_processor
from moescope.console.store_work import run_store
from moescope.core.clock import SystemClock
from moescope.core.kafka import Topic, open_admin, topic_name
from moescope.core.kafka.broker_watch import BrokerWatch
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.finish import WindowFinisher
from moescope.processors.group.joining import joined_group
from moescope.processors.sources.batch_log import LogRewoundError
from moescope.storage import Store
from moescope.storage.deltas import DeltasReader
from moescope.storage.errors import LogReplacedError
from moescope.storage.shared import WindowShapes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from oracles.windows_plain import Record
    from support.broker_choice import SharedBroker

    from moescope.core.settings import Settings

PATIENCE_S = 60.0


class Working(threading.Thread):
    """Something that runs until it is told to stop, or fails."""

    def __init__(self, work: Callable[[threading.Event], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._stop_it = threading.Event()
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        """Work."""
        try:
            self._work(self._stop_it)
        except Exception as error:  # noqa: BLE001 (looked at by the test)
            self.failure = error

    def end(self) -> None:
        """Stop it and wait."""
        self._stop_it.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()


@pytest.fixture
def settings(kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path) -> Settings:
    """Of a group whose topics are made."""
    made = topic_settings(kafka_broker.bootstrap, topic_prefix, **options_of(tmp_path / "first"))
    make_topics(made)
    return made


@pytest.fixture
def records() -> Sequence[Record]:
    """Of one partition."""
    return make_streams(10, (0,), passes=6)[0][:40]


def open_store(path: Path) -> Store:
    """A store for the windows of the settings."""
    return Store(path, WindowFinisher(), WindowShapes(((1_000_000, 1_000_000),), ((2, 2),)))


def delete(settings: Settings) -> None:
    """Delete the routing topic, and wait until it is gone."""
    topic = topic_name(settings, Topic.ROUTING)
    with closing(open_admin(settings)) as admin:
        admin.delete_topics([topic])
        wait_for("no topic", lambda: topic not in admin.list_topics(), PATIENCE_S)


def make(settings: Settings) -> None:
    """Make the routing topic alone."""
    with closing(open_admin(settings)) as admin:
        admin.create_topics(
            {topic_name(settings, Topic.ROUTING): {"num_partitions": 3}}, wait_for_metadata=True
        )


def process(settings: Settings) -> None:
    """Be the group's only processor until nothing is left."""
    run_processor(settings, threading.Event(), until_idle=True)


def has_emitted(settings: Settings, end: int) -> bool:
    """Whether the group's note says that partition 0 is applied so far."""
    with closing(open_admin(settings)) as admin:
        return emitted_to(settings, admin).get(0, 0) >= end


def test_a_new_topic_behind_stopped_processors_is_refused_by_the_store(
    settings: Settings, tmp_path: Path, records: Sequence[Record]
) -> None:
    """Its first records are not left out as if they were stored; an empty store takes them."""
    send(settings, {0: records[:20]})
    process(settings)
    own_until_idle(settings)
    delete(settings)
    make(settings)
    send(settings, {0: records[:15]})
    # Nothing of the group is left that could tell it.
    process(settings)
    with pytest.raises(LogReplacedError, match=r"routing-0 come from another topic") as caught:
        own_until_idle(settings)
    assert "--reset-processors" in caught.value.next_step
    empty = with_directory(settings, tmp_path / "second")
    own_until_idle(empty, reset=True)
    process(empty)
    metrics = own_until_idle(empty)
    assert metrics.value("moescope_store_refused_emissions_total") == 0
    name = f"{topic_name(settings, Topic.ROUTING)}-0"
    assert metrics.value("moescope_store_next_offset", partition=name) == 15


def own_until_idle(settings: Settings, *, reset: bool = False) -> SelfMetrics:
    """Own the store until everything that was sent is in it."""
    return run_store(settings, threading.Event(), until_idle=True, reset_processors=reset)


def with_directory(settings: Settings, directory: Path) -> Settings:
    """The same with another data directory."""
    return topic_settings(
        settings["kafka.bootstrap_servers"],
        settings["kafka.topic_prefix"],
        **options_of(directory),
    )


def options_of(directory: Path) -> dict[str, object]:
    """Options of every processor and store here."""
    small = {name.replace(".", "__"): value for name, value in SMALL_WINDOWS.items()}
    return {
        "store__source": "deltas",
        "data__directory": str(directory),
        "processor__commit_interval": 0.2,
        **small,
    }


def test_a_new_topic_under_running_processors_and_owner_ends_them(
    settings: Settings, tmp_path: Path, records: Sequence[Record]
) -> None:
    """The processor says so; a new one begins anew, and then the owner that still runs says so."""
    with open_store(tmp_path / "s.duckdb") as store:
        reader = DeltasReader(settings, store, SelfMetrics(), SystemClock(), lambda _: None)
        owner = Working(reader.run)
        processor = Working(lambda stop: run_processor(settings, stop))
        send(settings, {0: records[:20]})
        wait_for("a commit", lambda: has_emitted(settings, 20), PATIENCE_S)
        wait_for("its owner", lambda: 20 in places(store), PATIENCE_S)
        delete(settings)
        make(settings)
        send(settings, {0: records})
        processor.join(PATIENCE_S)
        assert isinstance(processor.failure, LogRewoundError)
        assert "not the topic whose records" in processor.failure.what
        assert places(store) == [20]
        processor = Working(lambda stop: run_processor(settings, stop))
        owner.join(PATIENCE_S)
        processor.end()
        assert processor.failure is None
        assert isinstance(owner.failure, LogReplacedError)
        assert places(store) == [20]


def places(store: Store) -> list[int]:
    """How far partitions with records are stored."""
    return sorted(each.emitted_to for each in store.load_progress().values() if each.emitted_to)


def test_a_member_whose_topic_is_missing_says_so(settings: Settings) -> None:
    """Before it was there, and after it was deleted, also before its partitions were resumed."""
    topic = topic_name(settings, Topic.ROUTING)
    delete(settings)
    watch = BrokerWatch(lambda _: None)
    with joined_group(
        settings,
        WindowFinisher(),
        metrics=SelfMetrics(),
        clock=SystemClock(),
        log=lambda _: None,
        watch=watch,
    ) as pipeline:
        member = Working(lambda stop: pipeline.run(stop=stop))
        wait_for("its name", lambda: is_missing(topic, watch), PATIENCE_S)
        make(settings)
        wait_for("its end", lambda: not watch.trouble, PATIENCE_S)
        delete(settings)
        wait_for("its name again", lambda: is_missing(topic, watch), PATIENCE_S)
        member.end()
    assert member.failure is None


def is_missing(topic: str, watch: BrokerWatch) -> bool:
    """Whether people are told so."""
    return f"{topic} does not exist" in watch.trouble and "topics-apply" in watch.trouble
