"""Batch logs that are shipped to a real broker, and what has arrived there."""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kafka import TopicPartition
from kafka.admin import NewTopic

from moescope.core.batchlog import BatchLogReader, BatchLogWriter, WriterSettings
from moescope.core.kafka import Topic, open_admin, open_consumer, topic_name
from moescope.core.self_metrics import SelfMetrics
from moescope.core.settings import Settings, load_settings
from moescope.producers.shipping import Shipper, ShippingPace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

PATIENCE_SECONDS = 90.0
QUICK = ShippingPace(
    poll=0.02,
    discover=0.1,
    save=0.1,
    report=0.1,
    first_pause=0.05,
    longest_pause=0.5,
    refused_pause=0.3,
    silence=1.5,
)
"""Sooner than in earnest, so that a test need not wait."""


class Arrived(NamedTuple):
    """One record of the topic."""

    partition: int
    key: str
    value: bytes
    headers: list[tuple[str, bytes]]


def shipping_settings(bootstrap: str, prefix: str, **options: object) -> Settings:
    """Settings of a broker; further ones with `_` for the first dot, as `kafka_partitions`."""
    named = {name.replace("_", ".", 1): value for name, value in options.items()}
    quick = {"kafka.connect_timeout": 2.0, "kafka.request_timeout": 5.0}
    quick |= {"kafka.delivery_timeout": 6.0}
    fixed = {"kafka.bootstrap_servers": bootstrap, "kafka.topic_prefix": prefix}
    return load_settings(environment={}, options={**quick, **fixed, **named})


def make_topic(settings: Settings, partitions: int = 3, largest: int = 9_000_000) -> str:
    """The topic of routing batches, with its largest record in bytes; gives its name."""
    name = topic_name(settings, Topic.ROUTING)
    configs = {"max.message.bytes": str(largest)}
    with closing(open_admin(settings)) as admin:
        admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
    return name


def payload_of(node: str, number: int, size: int = 300) -> bytes:
    """Bytes that only this batch has."""
    return f"{node}/{number}/".encode().ljust(size, b".")


def fill(
    root: Path, node: str, numbers: Iterable[int], size: int = 300, byte_cap: int | None = None
) -> None:
    """Append batches to a node's log."""
    with BatchLogWriter(root, node, settings=WriterSettings(byte_cap=byte_cap)) as writer:
        for number in numbers:
            writer.append(payload_of(node, number, size))


def logged_payloads(root: Path, node: str) -> list[bytes]:
    """What a node's log holds."""
    with BatchLogReader(root, node) as reader:
        offset, payloads = 0, []
        while records := (result := reader.read(offset)).records:
            payloads += [record.payload for record in records]
            offset = result.next_offset
        return payloads


def arrived(settings: Settings) -> list[Arrived]:
    """Everything that the topic holds now, partition by partition."""
    topic = topic_name(settings, Topic.ROUTING)
    with closing(open_consumer(settings)) as consumer:
        parts = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        consumer.assign(parts)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(parts)
        records: list[Arrived] = []
        until = time.monotonic() + PATIENCE_SECONDS
        while any(consumer.position(part) < ends[part] for part in parts):
            assert time.monotonic() < until, "the topic cannot be read"
            for part, polled in consumer.poll(timeout_ms=200).items():
                records += [
                    Arrived(part.partition, each.key.decode(), each.value, list(each.headers))
                    for each in polled
                ]
    return sorted(records, key=lambda record: record.partition)  # stable: offsets stay in order


def first_arrivals(records: Iterable[Arrived], node: str) -> list[bytes]:
    """A node's payloads in the order in which they first arrived."""
    return list(dict.fromkeys(record.value for record in records if record.key == node))


class Shipping(NamedTuple):
    """A shipper at work on a thread."""

    shipper: Shipper
    metrics: SelfMetrics


@contextmanager
def shipping(
    settings: Settings, root: Path, pace: ShippingPace = QUICK, **changes: float
) -> Iterator[Shipping]:
    """Ship on a thread until the block ends."""
    metrics = SelfMetrics()
    stop = threading.Event()
    failures: list[BaseException] = []
    with Shipper(settings, root, metrics, pace=replace(pace, **changes)) as shipper:

        def run() -> None:
            try:
                shipper.run(stop)
            except BaseException as failure:  # noqa: BLE001 (raised by the test's thread)
                failures.append(failure)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield Shipping(shipper, metrics)
        finally:
            stop.set()
            thread.join(PATIENCE_SECONDS)
    assert not failures, failures


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something that has to happen."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.02)
