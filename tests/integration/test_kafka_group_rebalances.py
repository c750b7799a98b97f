"""Members that lose partitions, commits that come too late, and what killed producers left."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing, contextmanager
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
from moescope.core.kafka.places import partition_number
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.finish import WindowFinisher
from moescope.processors.group.joining import joined_group

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from oracles.windows_plain import Record
    from support.broker_choice import SharedBroker
    from support.routed_topic import Streams

    from moescope.core.emission import FinishedWindows, Histograms, WindowGroup
    from moescope.core.settings import Settings

PATIENCE_S = 90.0
OPEN_MS = 120_000
"""The longest that brokers allow: longer than anybody here waits."""


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

    def own_partitions(self) -> set[int]:
        """Their numbers."""
        return {
            partition_number(labels[0])
            for metric, labels, _ in self.metrics.samples()
            if metric.name == "moescope_processor_lag_records"
        }

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


def wait_until_processed(
    settings: Settings, streams: Streams, parts: int, among: Collection[int] | None = None
) -> None:
    """Wait until the group has committed so many parts of all partitions, or of some."""
    chosen = range(settings["kafka.partitions"]) if among is None else among
    ends = {number: cuts(streams[number])[parts] for number in streams if number in chosen}
    with closing(open_admin(settings)) as admin:
        wait_for(
            f"commits up to {ends}",
            lambda: (
                ends
                == {
                    number: end
                    for number, end in emitted_to(settings, admin).items()
                    if number in chosen
                }
            ),
            PATIENCE_S,
        )


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


@contextmanager
def open_transaction(settings: Settings, partitions: Sequence[int]) -> Iterator[None]:
    """A transaction of the processor's name with places in it, which no time-out ends soon.

    So a broker leaves one that loses the end of a commit when it is killed.
    """
    topic = topic_name(settings, Topic.ROUTING)
    producer = open_producer(
        settings,
        transactional_id=f"{settings['kafka.group']}.processor-1",
        transaction_timeout_ms=OPEN_MS,
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        {TopicPartition(topic, number): OffsetAndMetadata(0, "", -1) for number in partitions},
        settings["kafka.group"],
    )
    try:
        yield
    finally:
        end_producer(producer)


def test_partitions_come_back_behind_an_open_transaction_of_their_own_processor(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """What holds back the places that a processor asks for is its own: it ends it, and goes on."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    named = topic_settings(kafka_broker.bootstrap, topic_prefix, kafka__instance_id="processor-1")
    make_topics(settings)
    streams = make_streams(23, (0, 1, 2), passes=12)
    first, second = Member(), Member()
    with first.running(named):
        send(settings, part(streams, 1))
        wait_until_processed(settings, streams, 1)
        with ExitStack() as left:
            with second.running(settings):
                wait_for("its share", lambda: bool(second.own_partitions()), PATIENCE_S)
                send(settings, part(streams, 2))
                wait_until_processed(settings, streams, 2)
                left.enter_context(open_transaction(settings, (0, 1, 2)))
                returning = second.own_partitions()
            wait_for("all of them", lambda: len(first.own_partitions()) == 3, PATIENCE_S)
            # None of those that it kept, for its next commit would end whatever is open.
            send(settings, {number: part(streams, 3)[number] for number in returning})
            wait_until_processed(settings, streams, 3, returning)


def test_who_gets_partitions_does_not_wait_for_an_open_transaction_of_who_had_them(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """A processor that loses partitions ends what of its own may be open there, though idle."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    named = topic_settings(kafka_broker.bootstrap, topic_prefix, kafka__instance_id="processor-1")
    make_topics(settings)
    streams = make_streams(24, (0, 1, 2), passes=12)
    first, second = Member(), Member()
    with first.running(named):
        send(settings, part(streams, 1))
        wait_until_processed(settings, streams, 1)
        with open_transaction(settings, (0, 1, 2)), second.running(settings):
            wait_for("its share", lambda: bool(second.own_partitions()), PATIENCE_S)
            own = {number: part(streams, 2)[number] for number in second.own_partitions()}
            # None for the first one, whose next commit would end whatever is open.
            send(settings, own)
            wait_until_processed(settings, streams, 2, own)


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
