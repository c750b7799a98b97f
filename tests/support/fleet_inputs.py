"""A topic full of what goes wrong on the way: repeated, reordered, spoilt, and by wrong clocks."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from support.fleet_load import ENDING_US, due_records, events_begin
from support.streams import encode

from moescope.core.kafka import open_producer
from moescope.core.kafka.record_times import times_header

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from oracles.windows_plain import Record
    from support.fleet_load import Machine

    from moescope.core.settings import Settings

POISON_SHARE = 0.01
REPEATED_SHARE = 0.05
REORDERED_SHARE = 0.05
LONGEST_DELAY = 40
"""A repeated record comes again at most so many records later."""


class Sent(NamedTuple):
    """One record of the topic to be.

    Attributes:
        node: Its key.
        record: What it was, before it was spoilt.
        clock_error_us: Of the node.
        spoil: How its bytes are spoilt; empty: not at all.
    """

    node: str
    record: Record
    clock_error_us: int
    spoil: str = ""


def spoilt(payload: bytes, how: str, chance: Random) -> bytes:
    """A batch that cannot be used any more."""
    place = chance.randrange(24, len(payload))
    if how == "bit":
        return (
            payload[:place]
            + bytes([payload[place] ^ 1 << chance.randrange(8)])
            + payload[place + 1 :]
        )
    if how == "short":
        return payload[:place]
    if how == "version":
        return payload[:4] + b"\x09" + payload[5:]
    return chance.randbytes(place)


def hostile_delivery(
    machines: Sequence[Machine], seconds: float, start_us: int, chance: Random
) -> list[list[Sent]]:
    """The machines' records in order, then some of them moved, repeated and spoilt.

    The last records of each node, which close everything, arrive as they should, in parts that
    have to be processed one after the other.
    """
    due = sorted(
        (one.seconds, machine.name, number, one.record, machine.clock_error_us)
        for machine in machines
        for number, one in enumerate(
            due_records(
                replace(machine, seconds=seconds), events_begin(start_us) + machine.clock_error_us
            )
        )
        if one.seconds <= seconds
    )
    sent = [Sent(record.node, record, error) for *_, record, error in due]
    delivered = _reordered(sent, chance)
    delivered = _repeated(delivered, chance)
    ways = ("bit", "short", "version", "noise")
    delivered = [
        one._replace(spoil=chance.choice(ways)) if chance.random() < POISON_SHARE else one
        for one in delivered
    ]
    return [delivered, *_last(sent)]


def _reordered(sent: Sequence[Sent], chance: Random) -> list[Sent]:
    found = list(sent)
    by_node: dict[str, int] = {}
    for place, one in enumerate(found):
        before = by_node.get(one.node)
        if before is not None and chance.random() < REORDERED_SHARE:
            found[before], found[place] = found[place], found[before]
        by_node[one.node] = place
    return found


def _repeated(sent: Sequence[Sent], chance: Random) -> list[Sent]:
    places = [(float(place), one) for place, one in enumerate(sent)]
    places += [
        (place + chance.uniform(0.5, LONGEST_DELAY), one)
        for place, one in places
        if chance.random() < REPEATED_SHARE
    ]
    return [one for _, one in sorted(places, key=lambda each: each[0])]


def _last(sent: Sequence[Sent]) -> list[list[Sent]]:
    """Heartbeats of every node after its last record: nothing earlier follows."""
    newest: dict[str, Sent] = {}
    for one in sent:
        if one.record.readable:
            newest[one.node] = one
    found = []
    for number, ahead in enumerate(ENDING_US, start=1):
        part = []
        for one in newest.values():
            latest = max(
                each.record.watermark
                for each in newest.values()
                if each.clock_error_us == one.clock_error_us
            )
            record = one.record._replace(
                sequence=one.record.sequence + number, rows=(), watermark=latest + ahead
            )
            part.append(one._replace(record=record))
        found.append(part)
    return found


def deliver(settings: Settings, topic: str, delivery: Sequence[Sent], chance: Random) -> None:
    """Send everything, in order, as agents would."""
    producer = open_producer(settings)
    try:
        futures = []
        for one in delivery:
            now_us = time.time_ns() // 1_000 + one.clock_error_us
            payload = encode(one.record._replace(appended=now_us, clock_error=0))
            if one.spoil and one.record.readable:
                payload = spoilt(payload, one.spoil, chance)
            headers = [times_header(now_us, now_us)]
            futures.append(producer.send(topic, payload, key=one.node.encode(), headers=headers))
        for future in futures:
            future.get(timeout=30)
    finally:
        producer.close(timeout=5)
