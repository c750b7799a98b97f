"""Members that lose partitions, commits that come too late, and what killed producers left."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata
from support.drained_deltas import apply_deltas
from support.fleet_processes import wait_for
from support.kafka_settings import committed_records
from support.processor_fleet import emitted_to
from support.routed_topic import make_streams, make_topics, roll_up_embedded, send, topic_settings
from support.small_windows import CONFIG
from support.stored import tables

from moescope.core.clock import SystemClock
from moescope.core.kafka import Topic, open_admin, open_producer, topic_name
from moescope.core.kafka.ending import end_producer
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.finish import WindowFinisher
from moescope.processors.group.joining import joined_group

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from oracles.windows_plain import Record
    from support.broker_choice import SharedBroker
    from support.routed_topic import Streams

    from moescope.core.emission import FinishedWindows, Histograms, WindowGroup
    from moescope.core.settings import Settings

PATIENCE_S = 90.0


class Member:
    """A processor of the group; its commits can be held up."""

    def __init__(self) -> None:
        self.metrics = SelfMetrics()
        self.may_commit = threading.Event()
        self.may_commit.set()
        self.is_committing = threading.Event()
        self._finisher = WindowFinisher()

    def finish(self, group: WindowGroup) -> tuple[FinishedWindows, Histograms]:
        """Finish windows, which is the last thing that happens before a commit is sent."""
        self.is_committing.set()
        self.may_commit.wait(PATIENCE_S)
        return self._finisher(group)

    @property
    def partitions(self) -> int:
        """How many are its own."""
        return int(self.metrics.value("moescope_processor_assigned_partitions"))

    @property
    def refused(self) -> int:
        """Commits that were refused."""
        return int(self.metrics.value("moescope_processor_refused_commits_total"))

    @property
    def commits(self) -> int:
        """Commits that were not."""
        return int(self.metrics.value("moescope_processor_commits_total"))

    @contextmanager
    def running(self, settings: Settings) -> Iterator[None]:
        """Be in the group while the block runs."""
        stop, failures = threading.Event(), []
        with joined_group(
            settings,
            self.finish,
            metrics=self.metrics,
            clock=SystemClock(),
            log=print,
            config=CONFIG,
        ) as pipeline:

            def work() -> None:
                try:
                    pipeline.run(stop=stop)
                except Exception as error:  # noqa: BLE001 (raised by the test)
                    failures.append(error)

            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            try:
                yield
            finally:
                self.may_commit.set()
                stop.set()
                thread.join(PATIENCE_S)
        if failures:
            raise failures[0]


def cuts(records: Sequence[Record]) -> list[int]:
    """Where three parts begin and end, each with rows; behind the last row there is silence."""
    last = max(place for place, record in enumerate(records) if record.rows)
    return [0, last // 3, 2 * last // 3, len(records)]


def part(streams: Streams, number: int) -> Streams:
    """One of three parts of each partition's records, counted from 1."""
    return {
        name: records[slice(*cuts(records)[number - 1 : number + 1])]
        for name, records in streams.items()
    }


def wait_until_processed(settings: Settings, streams: Streams, parts: int) -> None:
    """Wait until the group has committed so many parts of all partitions."""
    ends = {number: cuts(records)[parts] for number, records in streams.items()}
    with closing(open_admin(settings)) as admin:
        wait_for(f"commits up to {ends}", lambda: emitted_to(settings, admin) == ends, PATIENCE_S)


def test_partitions_that_were_away_come_back_as_others_left_them(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """A commit from before a rebalance is refused and counted; memory is that of the last commit.

    One member's commit is held up while another one joins, commits and leaves.
    """
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix, processor__commit_interval=0.2)
    make_topics(settings)
    streams = make_streams(21, (0, 1, 2), passes=12)
    first, second = Member(), Member()
    with first.running(settings):
        send(settings, part(streams, 1))
        wait_until_processed(settings, streams, 1)
        assert first.partitions == 3
        assert first.refused == 0
        first.is_committing.clear()
        first.may_commit.clear()
        send(settings, part(streams, 2))
        assert first.is_committing.wait(PATIENCE_S)
        with second.running(settings):
            wait_for("its share", lambda: second.partitions > 0, PATIENCE_S)
            wait_for("its commit", lambda: second.commits > 0, PATIENCE_S)
            first.may_commit.set()
            wait_for("a refusal", lambda: first.refused > 0, PATIENCE_S)
            wait_until_processed(settings, streams, 2)
        wait_for("all of them", lambda: first.partitions == 3, PATIENCE_S)
        send(settings, part(streams, 3))
        wait_until_processed(settings, streams, 3)
    apply_deltas(settings, tmp_path / "s.duckdb")
    embedded = roll_up_embedded(tmp_path, settings, streams)
    assert tables(tmp_path / "s.duckdb") == tables(embedded)


def test_what_a_killed_producer_of_our_name_left_is_never_committed(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """Neither its records nor its offsets; and nobody who reads waits behind them."""
    settings = topic_settings(
        kafka_broker.bootstrap, topic_prefix, kafka__instance_id="processor-1"
    )
    make_topics(settings)
    records = make_streams(22, (0,), passes=4)[0]
    left, topics = b"left open", [topic_name(settings, each) for each in (Topic.DELTAS, Topic.DLQ)]
    producer = open_producer(
        settings,
        transactional_id=f"{settings['kafka.group']}.processor-1",
        transaction_timeout_ms=60_000,
    )
    producer.init_transactions()
    producer.begin_transaction()
    for topic in topics:
        producer.send(topic, left, partition=0).get(timeout=PATIENCE_S)
    place = TopicPartition(topic_name(settings, Topic.ROUTING), 0)
    producer.send_offsets_to_transaction(
        {place: OffsetAndMetadata(len(records), "", -1)}, settings["kafka.group"]
    )
    end_producer(producer)
    send(settings, {0: records})
    member = Member()
    with member.running(settings):
        wait_until_processed(settings, {0: records}, 3)
    for topic in topics:
        assert left not in [each.value for each in committed_records(settings, topic)]
    name = f"{place.topic}-0"
    read = member.metrics.value("moescope_processor_records_total", partition=name)
    assert read == len(records)
