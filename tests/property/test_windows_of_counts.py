"""Counts fidelity: what a producer adds up itself gives the windows that its rows would give."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.windows_plain import (
    DECODE,
    LAST_OF_REQUEST,
    PREFILL,
    SECOND,
    Accepted,
    Lane,
    Record,
    Row,
    counts_of,
)
from support.rolled_up import roll_up
from support.streams import START_US, batch_of

from moescope.core.batch import RoutingBatch, TimeBlocks, TokenBlocks
from moescope.core.vocabulary import Fidelity
from moescope.core.wire import encode_batch
from moescope.processors.config import WindowConfig
from moescope.processors.sources.protocol import SourceRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.rolled_up import Outcome

LANE = Lane("moe", "r1", 8, 2, 2)
BLOCK = 128
CONFIG = WindowConfig(
    token=((128, 128), (256, 128)), time=((SECOND, SECOND), (3 * SECOND, SECOND)), step=()
)


def make_rows(seed: int) -> list[Row]:
    """Draw a few requests side by side, without gaps, in the order of time."""
    rng = Random(seed)
    rows: list[Row] = []
    for number in range(rng.randrange(1, 4)):
        prompt = rng.choice([0, 5, 128, 200])
        cached = rng.choice([0, min(3, prompt)])
        end = prompt + rng.choice([1, 100, 128, 300])
        time = START_US + rng.randrange(5 * SECOND)
        for position in range(cached, end):
            time += rng.choice([0, 4_000, 20_000])
            rows.append(
                Row(
                    request=f"request-{number}",
                    task="task",
                    scene=("chat", "code")[number % 2],
                    phase=PREFILL if position < prompt else DECODE,
                    position=position,
                    time=time,
                    step=None,
                    flags=LAST_OF_REQUEST if position == end - 1 else 0,
                    ids=tuple(tuple(rng.sample(range(8), 2)) for _ in range(2)),
                    starts=(0, prompt, -1, -1, -1, -1),
                    cached=cached,
                )
            )
    return sorted(rows, key=_time)


def _time(row: Row) -> int:
    assert row.time is not None
    return row.time


def _counts(rows: Sequence[Row]) -> list[list[int]]:
    return counts_of([Accepted(row, "node", LANE, [True, True]) for row in rows], LANE)


def _block(row: Row) -> tuple[str, int, int]:
    anchor = max(row.starts[row.phase], row.cached)
    return row.request, row.phase, (row.position - anchor) // BLOCK


def as_counts(record: Record) -> RoutingBatch:
    """What a producer of counts fidelity sends instead of the record's rows."""
    full = batch_of(record)
    # Pieces in the order of their first rows, each of one block.
    pieces: dict[tuple[str, int, int], list[Row]] = {}
    for row in record.rows:
        pieces.setdefault(_block(row), []).append(row)
    seconds: dict[tuple[int, int, str], list[Row]] = {}
    for row in record.rows:
        second = _time(row) // SECOND * SECOND
        seconds.setdefault((second, row.phase, row.scene), []).append(row)
    first = [rows[0] for rows in pieces.values()]
    scenes = sorted({scene for _, _, scene in seconds})
    return RoutingBatch(
        header=replace(full.header, fidelity=Fidelity.COUNTS),
        requests=full.requests,
        token_blocks=TokenBlocks(
            request=np.array([full.requests.ids.index(row.request) for row in first], np.int32),
            phase=np.array([row.phase for row in first], np.uint8),
            flags=np.array([rows[-1].flags for rows in pieces.values()], np.uint8),
            start_position=np.array([row.position for row in first], np.int32),
            tokens=np.array([len(rows) for rows in pieces.values()], np.int32),
            counts=np.array([_counts(rows) for rows in pieces.values()], np.uint32),
            first_time_us=np.array([_time(row) for row in first], np.int64),
            last_time_us=np.array([_time(rows[-1]) for rows in pieces.values()], np.int64),
        ),
        time_blocks=TimeBlocks(
            second_us=np.array([second for second, _, _ in seconds], np.int64),
            phase=np.array([phase for _, phase, _ in seconds], np.uint8),
            scene=np.array([scenes.index(scene) for _, _, scene in seconds], np.uint16),
            scenes=tuple(scenes),
            tokens=np.array([len(rows) for rows in seconds.values()], np.int64),
            requests=np.array(
                [len({row.request for row in rows}) for rows in seconds.values()], np.int32
            ),
            counts=np.array([_counts(rows) for rows in seconds.values()], np.uint32),
        ),
    )


@given(st.integers(0, 2**32), st.sampled_from([200_000, 999_999]))
@settings(max_examples=15)
def test_counts_give_the_windows_of_their_rows(seed: int, span_us: int) -> None:
    """Token windows of whole blocks and time windows hold the same counts in both fidelities."""
    records = [
        Record("node", sequence, LANE, _time(rows[-1]), tuple(rows), appended=START_US)
        for sequence, rows in enumerate(
            [list(rows) for _, rows in groupby(make_rows(seed), lambda row: _time(row) // span_us)]
        )
    ]
    full = _roll_up([batch_of(record) for record in records])
    counts = _roll_up([as_counts(record) for record in records])
    assert _without_router(counts) == _without_router(full)
    assert _pane_counts(counts) == _pane_counts(full)


def _without_router(outcome: Outcome) -> Counter[tuple[object, ...]]:
    """Token windows without what counts cannot tell: pairs of rows."""
    return Counter(
        {(*window[:18], *window[19:]): number for window, number in outcome.token.items()}
    )


def _roll_up(batches: list[RoutingBatch]) -> Outcome:
    return roll_up(
        [SourceRecord(n, START_US, encode_batch(batch)) for n, batch in enumerate(batches)], CONFIG
    )


def _pane_counts(outcome: Outcome) -> dict[tuple[object, ...], tuple[object, ...]]:
    """Counts and rows per pane; how often a request enters a second is the producer's to say."""
    return {key: value[:2] for key, value in outcome.panes.items() if key[0] == "time"}
