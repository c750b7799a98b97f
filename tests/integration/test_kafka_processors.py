"""Processors that share a topic end with the tables of one process, whatever befalls them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from support.drained_deltas import apply_deltas
from support.fleet_processes import Nursery, wait_for
from support.processor_fleet import PATIENCE_S, ProcessorFleet
from support.routed_topic import (
    make_streams,
    make_topics,
    roll_up_embedded,
    send,
    topic_settings,
)
from support.stored import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.broker_choice import SharedBroker
    from support.routed_topic import Streams

    from moescope.core.settings import Settings

PIECES = 12


@pytest.fixture
def settings(kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path) -> Settings:
    """Settings of a group whose topics are made."""
    made = topic_settings(
        kafka_broker.bootstrap,
        topic_prefix,
        data__directory=str(tmp_path / "data"),
        processor__commit_records=8,
        processor__commit_interval=0.2,
    )
    make_topics(made)
    return made


@pytest.fixture
def fleet(settings: Settings, tmp_path: Path) -> Iterator[ProcessorFleet]:
    """Its processors; none runs yet."""
    with Nursery(tmp_path / "logs") as nursery:
        yield ProcessorFleet(settings, nursery)


def ends_of(streams: Streams) -> dict[int, int]:
    """Offset after the last record of each partition."""
    return {number: len(records) for number, records in streams.items()}


def send_in_pieces(
    settings: Settings, streams: Streams, between: dict[int, Callable[[], object]]
) -> None:
    """Send the streams bit by bit, and do something after some of the pieces."""
    for piece in range(PIECES):
        send(
            settings,
            {
                number: records[
                    len(records) * piece // PIECES : len(records) * (piece + 1) // PIECES
                ]
                for number, records in streams.items()
            },
        )
        between.get(piece, lambda: time.sleep(0.2))()


def test_kills_pauses_and_rebalances_change_nothing(
    settings: Settings, fleet: ProcessorFleet, tmp_path: Path
) -> None:
    """Killed in a transaction, frozen past its session, joining and leaving: the same tables."""
    streams = make_streams(6, (0, 1, 2), passes=16)
    first = fleet.start(dies_in_commit=3)
    second, third = fleet.start(), fleet.start()
    fourth = []
    fleet.wait_for_members(1, 1, 1)

    def wait_for_the_first_to_die() -> None:
        wait_for("the end of the first", lambda: not first.is_running, PATIENCE_S)

    def freeze_the_second() -> None:
        second.pause()
        # Its session is over, and its partitions are somebody else's.
        fleet.wait_for_members(3)

    send_in_pieces(
        settings,
        streams,
        {
            3: wait_for_the_first_to_die,
            6: freeze_the_second,
            7: second.resume,
            8: lambda: fleet.wait_for_members(1, 2),
            9: third.stop,
            10: lambda: fourth.append(fleet.start()),
        },
    )
    fleet.wait_until_processed(ends_of(streams))
    second.stop()
    fourth[0].stop()
    apply_deltas(settings, tmp_path / "s.duckdb")
    embedded = roll_up_embedded(tmp_path, settings, streams)
    assert tables(tmp_path / "s.duckdb") == tables(embedded)
