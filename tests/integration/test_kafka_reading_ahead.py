"""What a reader of the topic holds, and what it and a processor say of themselves meanwhile."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from kafka import TopicPartition
from support.fleet_processes import wait_for
from support.routed_topic import make_streams, make_topics, send, topic_settings
from support.small_windows import CONFIG

from moescope.core.clock import SystemClock
from moescope.core.kafka import Topic, open_producer, topic_name
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.finish import WindowFinisher
from moescope.processors.group.joining import joined_group
from moescope.processors.sources.kafka import KafkaSource

if TYPE_CHECKING:
    from support.broker_choice import SharedBroker

PATIENCE_S = 30.0
BUFFER = 1 << 20
RECORD = 100_000


def test_full_buffer_pauses_its_partition_until_half_is_taken(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """A partition that holds more than `kafka.buffer_bytes` is paused, and goes on later."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix, kafka__buffer_bytes=BUFFER)
    make_topics(settings)
    topic = topic_name(settings, Topic.ROUTING)
    name, first, count = f"{topic}-0", TopicPartition(topic, 0), 40
    with closing(open_producer(settings)) as producer:
        for _ in range(count):
            producer.send(topic, b"x" * RECORD, partition=0)
        producer.flush()
    with KafkaSource(settings, SelfMetrics(), SystemClock()) as source:
        place = 0

        def is_paused() -> bool:
            source.partitions()
            return first in source._consumer.paused()  # noqa: SLF001 (what the client itself knows)

        def take(most: int) -> int:
            nonlocal place
            for each in source.partitions():
                found = source.poll(each, place if each == name else 0, most, BUFFER)
                place = found.next_offset if each == name else place
            return place

        wait_for("a first record", lambda: take(1) == 1, PATIENCE_S)
        wait_for("a full buffer", is_paused, PATIENCE_S)
        wait_for("all records", lambda: take(16) == count, PATIENCE_S)
        assert not is_paused()


def test_backlog_is_told_while_it_is_read(kafka_broker: SharedBroker, topic_prefix: str) -> None:
    """Records that were appended long ago and wait make `catching_up` 1; at the end it is 0."""
    settings, metrics = topic_settings(kafka_broker.bootstrap, topic_prefix), SelfMetrics()
    make_topics(settings)
    records = make_streams(5, (0,), passes=6)[0]
    send(settings, {0: records})
    name, place = f"{topic_name(settings, Topic.ROUTING)}-0", 0
    with KafkaSource(settings, metrics, SystemClock()) as source:

        def take(most: int) -> int:
            nonlocal place
            for each in source.partitions():
                found = source.poll(each, place if each == name else 0, most, BUFFER)
                place = found.next_offset if each == name else place
            return place

        wait_for("a first record", lambda: take(1) == 1, PATIENCE_S)
        assert not source.settled()
        assert metrics.value("moescope_processor_catching_up") == 1
        lag = metrics.value("moescope_processor_lag_records", partition=name)
        assert lag == len(records) - 1
        wait_for("all records", lambda: take(64) == len(records), PATIENCE_S)
        assert source.settled()
        assert metrics.value("moescope_processor_catching_up") == 0


def test_processor_says_which_partitions_it_is_given(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """A line and two metrics tell the share of the group's only processor; a line dead letters."""
    settings, metrics = topic_settings(kafka_broker.bootstrap, topic_prefix), SelfMetrics()
    make_topics(settings)
    said: list[str] = []
    with closing(open_producer(settings)) as producer:
        producer.send(topic_name(settings, Topic.ROUTING), b"no batch", partition=1)
        producer.flush()
    with joined_group(
        settings,
        WindowFinisher(),
        metrics=metrics,
        clock=SystemClock(),
        log=said.append,
        patient=False,
        config=CONFIG,
    ) as pipeline:
        pipeline.run(until_idle=True)
    letters = [line for line in said if line.startswith("dead letters, ")]
    assert len(letters) == 1
    assert f"malformed: 1 record ({topic_name(settings, Topic.ROUTING)}-1 1);" in letters[0]
    assert "partitions given: 0, 1, 2; 3 in all" in said
    assert metrics.value("moescope_processor_assigned_partitions") == 3
    assert metrics.value("moescope_processor_rebalances_total") >= 1
