"""The routing topic read back whole, and turned into what the plain roll-up reads.

Neither the client's wrappers nor the codec of moescope take part: a plain consumer and the
second decoder of the wire format.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from oracles import wire_v1_plain
from oracles.windows_plain import NO_TIME, Lane, Record, Row

if TYPE_CHECKING:
    from collections.abc import Iterable


class Place(NamedTuple):
    """One record of a topic.

    Attributes:
        appended_us: When its batch was logged, by the broker's clock.
        arrived_us: When the broker appended it, µs.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    appended_us: int
    arrived_us: int


class Identity(NamedTuple):
    """What tells a batch from all others."""

    node: str
    incarnation: int
    sequence: int


def end_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    """Partition → offset after its last record."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        found = consumer.end_offsets(_partitions(consumer, topic))
    finally:
        consumer.close()
    return {place.partition: offset for place, offset in found.items()}


def read_topic(bootstrap: str, topic: str) -> dict[int, list[Place]]:
    """Every record of each partition, to where it ended when this was called."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, max_partition_fetch_bytes=16 << 20, fetch_max_bytes=64 << 20
    )
    try:
        places = _partitions(consumer, topic)
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        found: dict[int, list[Place]] = {place.partition: [] for place in places}
        while any(consumer.position(place) < ends[place] for place in places):
            for place, records in consumer.poll(1_000).items():
                found[place.partition] += [
                    Place(
                        place.partition,
                        one.offset,
                        one.key,
                        one.value or b"",
                        _appended_us(one),
                        int(one.timestamp) * 1_000,
                    )
                    for one in records
                    if one.offset < ends[place]
                ]
    finally:
        consumer.close()
    return found


def _partitions(consumer: KafkaConsumer, topic: str) -> list[TopicPartition]:
    numbers = consumer.partitions_for_topic(topic) or set()
    return [TopicPartition(topic, number) for number in sorted(numbers)]


def _appended_us(record: Any) -> int:
    times = dict(record.headers).get("moescope-times")
    broker_us = int(record.timestamp) * 1_000
    if times is None or len(times) != 16:
        return broker_us
    logged, sent = struct.unpack("<qq", times)
    return int(logged + broker_us - sent)


def identity_of(payload: bytes) -> Identity | None:
    """The identity of a batch, or None for what is none."""
    if not re.match(rb"MSRB\x01", payload):
        return None
    length, incarnation, sequence = struct.unpack_from("<HQQ", payload, 6)
    return Identity(payload[24 : 24 + length].decode(), incarnation, sequence)


def plain_record(place: Place) -> Record:
    """One record as the plain roll-up reads it."""
    try:
        batch = wire_v1_plain.decode(place.value)
    except (ValueError, struct.error, IndexError):
        lane = Lane("", "", 1, 1, 1)
        return Record(
            "", 0, lane, readable=False, appended=place.appended_us, arrived=place.arrived_us
        )
    lane = Lane(
        batch["model"], batch["revision"], batch["experts"], batch["top_k"], len(batch["layers"])
    )
    return Record(
        batch["node"],
        batch["sequence"],
        lane,
        watermark=batch["watermark_us"],
        rows=tuple(_rows(batch)),
        incarnation=batch["incarnation"],
        clock_error=batch["encoded_at_us"] - place.appended_us,
        appended=place.appended_us,
        arrived=place.arrived_us,
    )


def _rows(batch: dict[str, Any]) -> Iterable[Row]:
    tokens, routes, requests = batch["tokens"], batch["routes"], batch["requests"]
    if tokens is None:
        return
    times = tokens["event_time_us"]
    steps = tokens["step"]
    for number, request in enumerate(tokens["request"]):
        yield Row(
            request=requests["ids"][request],
            task=requests["tasks"][request],
            scene=requests["scenes"][request],
            phase=tokens["phase"][number],
            position=tokens["position"][number],
            time=None if times is None or times[number] == NO_TIME else times[number],
            step=None if steps is None else steps[number],
            flags=tokens["flags"][number],
            ids=tuple(tuple(layer) for layer in routes["expert_ids"][number]),
            starts=tuple(requests["phase_starts"][request]),
            cached=requests["cached_tokens"][request],
        )


def identities(places: Iterable[Place]) -> dict[Identity, int]:
    """How often each batch is there."""
    found: dict[Identity, int] = defaultdict(int)
    for place in places:
        identity = identity_of(place.value)
        if identity is not None:
            found[identity] += 1
    return dict(found)
