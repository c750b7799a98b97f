"""A node that loses rows: what paging still reads, and what it no longer may."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.judged_groups import metric_lines
from support.rings import EXPERTS, LAYERS, TOP_K
from support.small_windows import CONFIG
from support.watched_engine import SECOND, WatchedEngine, routes

from moescope.core.thresholds import (
    Activation,
    LineKey,
    ThresholdBook,
    ThresholdScope,
    ThresholdVersion,
)
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.batch_log import BatchLogSource
from moescope.storage.shared import WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 8
ROWS = 32
"""Accepted in each of them."""


def book_of_lines() -> ThresholdBook:
    """Lines that every window of a second is past, whatever it holds."""
    red = metric_lines(red_high=[-1.0] * len(LAYERS), spread=[1.0] * len(LAYERS))
    key = LineKey("decode", "time", SECOND, SECOND, "all", "", f"0:{ROWS.bit_length() - 1}")
    version = ThresholdVersion(
        version="t-1",
        scope=ThresholdScope("tiny", "r1", "model", "full", 1.0),
        layers=tuple(LAYERS),
        experts=EXPERTS,
        top_k=TOP_K,
        lines={key: {"gini": red}},
        references={},
    )
    book = ThresholdBook()
    book.replace({"t-1": version}, {version.scope: (Activation(0, "t-1"),)})
    return book


def roll_up_judged(engine: WatchedEngine) -> None:
    """Roll the log up with thresholds in force."""
    finisher = WindowFinisher(book_of_lines())
    shapes = WindowShapes(CONFIG.time, CONFIG.step)
    with BatchLogSource(engine.log) as source, Store(engine.store, finisher, shapes) as store:
        Pipeline(source, store, finisher, CONFIG, commit_records=1000).run(until_idle=True)


@pytest.mark.parametrize(
    ("rejected", "level"), [(0, "red"), (1, "red"), (8, "insufficient")], ids=["0", "1", "8"]
)
def test_paging_reads_the_windows_that_have_a_level(
    tmp_path: Path, rejected: int, level: str
) -> None:
    """One rejected row in each second silences nothing; a fifth of all rows does."""
    engine = WatchedEngine(tmp_path)
    for second in range(SECONDS):
        ids = routes(range(second * ROWS, (second + 1) * ROWS))
        times = np.full(ROWS, engine.clock.now_us())
        positions = np.arange(second * ROWS, (second + 1) * ROWS)
        engine.recorder.record("a", positions, ids, "decode", event_time_us=times)
        if rejected:
            engine.recorder.record("b", np.arange(rejected), ids[:0], "decode")
        engine.ship()
        engine.clock.sleep(1)
    engine.rest()
    roll_up_judged(engine)
    engine.close()
    assert engine.total("rejected_rows") == rejected * SECONDS
    *windows, last = engine.seconds(1)
    assert {window.lost > 0 for window in windows} == {rejected > 0}
    assert {window.level for window in windows} == {level}
    # What was rejected after the last row belongs to the time after it.
    assert (last.lost, last.level) == (0, "red")
    paging = engine.rows("SELECT sum(windows), sum(red_windows), min(value) > 0 FROM exceedances")
    read = SECONDS if level == "red" else 1
    assert paging == [(read, read, True)]
