"""What a routing topic may come to, and what becomes of its windows then."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from kafka import TopicPartition
from support.drained_deltas import apply_deltas
from support.fleet_processes import FleetError, wait_for
from support.processor_fleet import emitted_to
from support.routed_topic import (
    make_streams,
    make_topics,
    roll_up_embedded,
    send,
    topic_settings,
)
from support.small_windows import CONFIG, open_store
from support.stored import tables
from support.streams import encode

from moescope.core.clock import SystemClock
from moescope.core.kafka import (
    BrokerUnreachableError,
    Topic,
    TopicMissingError,
    open_admin,
    open_producer,
    topic_name,
)
from moescope.core.kafka.record_times import HEADER
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.finish import WindowFinisher
from moescope.processors.group.joining import joined_group
from moescope.processors.pipeline import Pipeline
from moescope.processors.pipeline_metrics import PipelineMetrics
from moescope.processors.sources.batch_log import LogRewoundError
from moescope.processors.sources.kafka import KafkaSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.broker_choice import Broker, SharedBroker

    from moescope.core.settings import Settings

PATIENCE_S = 90.0


def roll_up(settings: Settings, store_file: Path, metrics: SelfMetrics | None = None) -> None:
    """Read the topic into a store until nothing is left."""
    metrics = metrics or SelfMetrics()
    source = KafkaSource(settings, metrics, SystemClock(), patient=False)
    with source, open_store(store_file) as store:
        Pipeline(
            source,
            store,
            WindowFinisher(),
            CONFIG,
            metrics=PipelineMetrics(metrics, reads_topic=True),
        ).run(until_idle=True)


@contextmanager
def running(pipeline: Pipeline) -> Iterator[None]:
    """A pipeline on a thread, which is stopped at the end; raises what it raised."""
    stop, failures = threading.Event(), []

    def run() -> None:
        try:
            pipeline.run(stop=stop)
        except Exception as error:  # noqa: BLE001 (raised by the test)
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def query(store_file: Path, text: str) -> list[tuple[Any, ...]]:
    """Rows of a store that is closed."""
    with duckdb.connect(str(store_file), read_only=True) as connection:
        return connection.execute(text).fetchall()


def test_truncated_records_are_a_counted_gap(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Retention took records unread: a letter says how many, coverage says where; all goes on."""
    settings, metrics = topic_settings(kafka_broker.bootstrap, topic_prefix), SelfMetrics()
    make_topics(settings)
    records = make_streams(8, (0,))[0]
    with_rows = [number for number, record in enumerate(records) if record.rows]
    half = with_rows[len(with_rows) // 3]
    begin = half + 9
    store = tmp_path / "store.duckdb"
    send(settings, {0: records[:half]})
    roll_up(settings, store)
    send(settings, {0: records[half:]})
    place = TopicPartition(topic_name(settings, Topic.ROUTING), 0)
    with closing(open_admin(settings)) as admin:
        admin.delete_records({place: begin})
    roll_up(settings, store, metrics)
    partition = f"{place.topic}-0"
    gaps = query(store, "SELECT log_offset, detail FROM dead_letters WHERE reason = 'log_gap'")
    assert gaps == [(half, f"{begin - half} records: removed by the topic's retention")]
    assert metrics.value("moescope_processor_gap_records_total", partition=partition) == 9
    assert query(store, "SELECT emitted_to FROM offsets") == [(len(records),)]
    unknown = query(store, "SELECT count(*) FROM windows WHERE level_reason = 'coverage unknown'")
    assert unknown[0][0] > 0


def test_gap_behind_a_first_commit_is_counted(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Windows from the first record on are open: what is gone behind it is told all the same."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    records = [record for record in make_streams(8, (0,), passes=12)[0] if record.rows]
    store = tmp_path / "store.duckdb"
    send(settings, {0: records[:2]})
    roll_up(settings, store)
    assert query(store, "SELECT emitted_to, replay_from FROM offsets") == [(2, 0)]
    send(settings, {0: records[2:]})
    place = TopicPartition(topic_name(settings, Topic.ROUTING), 0)
    with closing(open_admin(settings)) as admin:
        admin.delete_records({place: 11})
    roll_up(settings, store)
    gaps = query(store, "SELECT log_offset, detail FROM dead_letters WHERE reason = 'log_gap'")
    assert gaps == [(2, "9 records: removed by the topic's retention")]


def test_who_comes_late_to_an_old_topic_misses_nothing(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """What retention took before anything was ever read is no gap."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    records = make_streams(8, (0,), passes=12)[0]
    send(settings, {0: records})
    place = TopicPartition(topic_name(settings, Topic.ROUTING), 0)
    with closing(open_admin(settings)) as admin:
        admin.delete_records({place: 11})
    roll_up(settings, tmp_path / "store.duckdb")
    store = tmp_path / "store.duckdb"
    assert query(store, "SELECT count(*) FROM dead_letters") == [(0,)]
    assert query(store, "SELECT emitted_to FROM offsets") == [(len(records),)]


def test_topic_that_is_deleted_under_its_reader_is_waited_for(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """Whatever the client raises then is told as a missing topic; nothing ends."""
    settings, said = topic_settings(kafka_broker.bootstrap, topic_prefix), list[str]()
    make_topics(settings)
    # Marks of transactions alone: the reader asks for its position to pass them.
    topic = topic_name(settings, Topic.ROUTING)
    with closing(open_producer(settings, transactional_id=topic_prefix)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x", partition=0)
        producer.flush()
        producer.abort_transaction()
    with (
        KafkaSource(settings, SelfMetrics(), SystemClock(), log=said.append) as source,
        closing(open_admin(settings)) as admin,
    ):
        wait_for("partitions", lambda: len(source.partitions()) == 3, PATIENCE_S)
        admin.delete_topics([topic])

        def is_told() -> bool:
            for name in source.partitions():
                source.poll(name, 0, 16, 1 << 20)
            source.settled()
            return any(line.startswith("waiting for Kafka: ") for line in said)

        wait_for("the loss to be told", is_told, PATIENCE_S)


def test_headers_without_sense_leave_the_brokers_time(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Records with no headers, foreign ones, or nonsense in ours are read like all others."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    records = make_streams(9, (0,), passes=6)[0]
    odd = [[], [("trace", b"\x00\xff")], [(HEADER, b"")], [(HEADER, b"x" * 16)], [(HEADER, b"xyz")]]
    with closing(open_producer(settings)) as producer:
        for number, record in enumerate(records):
            producer.send(
                topic_name(settings, Topic.ROUTING),
                encode(record),
                partition=0,
                timestamp_ms=record.appended // 1_000,
                headers=odd[number % len(odd)],
            )
        producer.flush()
    rounded = [record._replace(appended=record.appended // 1_000 * 1_000) for record in records]
    roll_up(settings, tmp_path / "store.duckdb")
    stored = query(
        tmp_path / "store.duckdb", "SELECT log_offset, epoch_us(append_time) FROM batches"
    )
    assert stored
    assert all(rounded[offset].appended == time_us for offset, time_us in stored)


class NoText(str):
    """The name of a header that the client sends as it is, and cannot read."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:  # noqa: ARG002 - the signature of str
        """Bytes that are not UTF-8."""
        return b"\xff\xfe"


def test_records_that_the_client_cannot_read_are_a_counted_gap(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Headers whose names are no text: a letter for each, and the rest is read."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    streams = make_streams(14, (0, 1), passes=8)
    topic = topic_name(settings, Topic.ROUTING)
    send(settings, {0: streams[0][:10], 1: streams[1]})
    with closing(open_producer(settings)) as producer:
        for _ in range(3):
            producer.send(topic, b"x", partition=0, headers=[(NoText("a"), b"")]).get(
                timeout=PATIENCE_S
            )
    send(settings, {0: streams[0][10:]})
    roll_up(settings, tmp_path / "store.duckdb")
    letters = query(
        tmp_path / "store.duckdb",
        "SELECT log_offset, detail FROM dead_letters WHERE reason = 'log_gap'",
    )
    assert sorted(letters) == [
        (offset, "1 records: unreadable (CorruptRecordError)") for offset in (10, 11, 12)
    ]
    ends = query(tmp_path / "store.duckdb", "SELECT emitted_to FROM offsets ORDER BY partition")
    assert ends == [(len(streams[0]) + 3,), (len(streams[1]),)]


def make_anew(settings: Settings) -> None:
    """Delete the routing topic, and make one of the same name."""
    topic = topic_name(settings, Topic.ROUTING)
    with closing(open_admin(settings)) as admin:
        admin.delete_topics([topic])
        wait_for("no topic", lambda: topic not in admin.list_topics(), PATIENCE_S)
        admin.create_topics({topic: {"num_partitions": 3}}, wait_for_metadata=True)


@pytest.mark.parametrize("records_then", [3, 40])
def test_topic_made_anew_is_an_error(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path, records_then: int
) -> None:
    """A new topic's records are not taken for those that are stored, also when it has grown."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    records = make_streams(10, (0,), passes=6)[0][:40]
    send(settings, {0: records[:20]})
    roll_up(settings, tmp_path / "store.duckdb")
    make_anew(settings)
    send(settings, {0: records[:records_then]})
    with pytest.raises(LogRewoundError, match="not the topic whose records"):
        roll_up(settings, tmp_path / "store.duckdb")


def test_topic_made_anew_under_its_reader_is_an_error(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """A reader that runs meanwhile is told within seconds, however many records there are."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    records = make_streams(10, (0,), passes=6)[0][:40]
    send(settings, {0: records[:20]})
    name, place = f"{topic_name(settings, Topic.ROUTING)}-0", 0
    with KafkaSource(settings, SelfMetrics(), SystemClock()) as source:

        def offset_read() -> int:
            nonlocal place
            for each in source.partitions():
                found = source.poll(each, place if each == name else 0, 16, 1 << 20)
                place = found.next_offset if each == name else place
            return place

        wait_for("the records", lambda: offset_read() == 20, PATIENCE_S)
        make_anew(settings)
        send(settings, {0: records})
        with pytest.raises(LogRewoundError, match="not the topic whose records"):
            wait_for("the error", lambda: offset_read() < 0, PATIENCE_S)


def test_missing_topic_and_broker_are_said(kafka_broker: SharedBroker, topic_prefix: str) -> None:
    """Who does not want to wait is told what is missing."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    with (
        KafkaSource(settings, SelfMetrics(), SystemClock(), patient=False) as source,
        pytest.raises(TopicMissingError, match="does not exist"),
    ):
        source.partitions()
    nobody = topic_settings("127.0.0.1:9", topic_prefix, kafka__connect_timeout=0.5)
    with (
        KafkaSource(nobody, SelfMetrics(), SystemClock(), patient=False) as source,
        pytest.raises(BrokerUnreachableError),
    ):
        source.partitions()


def test_restarted_broker_changes_nothing(
    own_broker: Broker, topic_prefix: str, tmp_path: Path
) -> None:
    """Killed under load and started again, for both kinds of reader: the same tables."""
    settings = topic_settings(own_broker.bootstrap, topic_prefix, processor__commit_records=8)
    make_topics(settings)
    # Of one partition alone: a second one would be silent while its records are being sent.
    streams = make_streams(11, (0,))
    before, after, last = (
        {0: streams[0][part]} for part in (slice(40), slice(40, -1), slice(-1, None))
    )
    ends = {f"{topic_name(settings, Topic.ROUTING)}-{n}": len(each) for n, each in streams.items()}
    alone, metrics = tmp_path / "alone.duckdb", SelfMetrics()
    reached: list[tuple[dict[str, int], dict[str, int]]] = []

    def are_both_at_the_end() -> bool:
        embedded = {name: each.emitted_to for name, each in store.load_progress().items()}
        committed = _committed(settings)
        reached.append((embedded, committed))
        return embedded == ends == committed

    with (
        KafkaSource(settings, metrics, SystemClock(), log=print) as source,
        open_store(alone) as store,
        joined_group(
            settings,
            WindowFinisher(),
            metrics=SelfMetrics(),
            clock=SystemClock(),
            log=print,
            config=CONFIG,
        ) as member,
        running(Pipeline(source, store, WindowFinisher(), CONFIG, commit_records=8)),
        running(member),
    ):
        send(settings, before)
        wait_for("some commits", lambda: member.totals.commits > 1, PATIENCE_S)
        own_broker.kill()
        own_broker.start()
        send(settings, after)
        # What the last record closes is held back while nobody has told of the other partition.
        wait_for("both ends to be told of", lambda: not source.unread(()), PATIENCE_S)
        send(settings, last)
        try:
            wait_for("both to come to the end", are_both_at_the_end, PATIENCE_S)
        except FleetError as error:
            error.add_note(f"embedded, group: {reached[-1]} of {ends}")
            raise
    apply_deltas(settings, tmp_path / "group.duckdb")
    embedded = tables(roll_up_embedded(tmp_path, settings, streams))
    assert tables(alone) == embedded
    assert tables(tmp_path / "group.duckdb") == embedded


def _committed(settings: Settings) -> dict[str, int]:
    with closing(open_admin(settings)) as admin:
        topic = topic_name(settings, Topic.ROUTING)
        return {f"{topic}-{n}": offset for n, offset in emitted_to(settings, admin).items()}
