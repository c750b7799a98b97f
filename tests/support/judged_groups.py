"""Groups of windows and threshold versions for tests of judging."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.emission import LaneKey, WindowGroup
from moescope.core.thresholds import (
    Activation,
    LineKey,
    LineSource,
    MetricLines,
    Standing,
    ThresholdBook,
    ThresholdScope,
    ThresholdVersion,
)
from moescope.core.vocabulary import CloseReason, ScopeKind, WindowKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moescope.core.thresholds import BaselineReference

LANE = LaneKey("live", "m", "r1", "served", "full", 1.0, 6, 2, (3, 7))
"""Two of the layers of a model of 6 experts, top-2."""


def group_of(windows: int, **given: Any) -> WindowGroup:
    """Complete token windows of `LANE`, one a second; anything may be given otherwise."""
    nothing = np.zeros(windows, np.int64)
    fields: dict[str, Any] = {
        "lane": LANE,
        "phase": "decode",
        "kind": WindowKind.TOKEN,
        "size": 4,
        "stride": 4,
        "scope_kind": ScopeKind.ALL,
        "scope_value": "",
        "start": np.arange(windows) * 4,
        "first_time_us": nothing,
        "last_time_us": nothing,
        "close_time_us": np.arange(windows) * 1_000_000,
        "request": [f"q{window}" for window in range(windows)],
        "task": [""] * windows,
        "scene": [""] * windows,
        "node": ["n"] * windows,
        "seen": np.full(windows, 4),
        "expected": np.full(windows, 4),
        "lost": nothing,
        "unknown_gap": np.zeros(windows, np.bool_),
        "requests": np.ones(windows, np.int64),
        "close_reason": [CloseReason.COMPLETE] * windows,
        "complete": np.ones(windows, np.bool_),
        "weight": np.ones(windows),
        "row_version": np.ones(windows, np.int32),
        "counts": np.tile(np.array([2, 2, 2, 1, 1, 0], np.uint32), (windows, len(LANE.layers), 1)),
        "dropped": np.zeros((windows, len(LANE.layers)), np.uint64),
    }
    return WindowGroup(**{**fields, **given})


def line_key(scene: str = "", band: str = "", kind: str = "token") -> LineKey:
    """Lines for the windows of `group_of`."""
    return LineKey("decode", kind, 4, 4, "all", scene, band)


def metric_lines(
    *,
    warn_low: Sequence[float] | None = None,
    warn_high: Sequence[float] | None = None,
    red_low: Sequence[float] | None = None,
    red_high: Sequence[float] | None = None,
    spread: Sequence[float] = (1.0, 1.0),
) -> MetricLines:
    """Lines of one metric at both layers."""
    none = [math.nan] * len(spread)
    return MetricLines(
        warn_low=np.array(none if warn_low is None else warn_low),
        warn_high=np.array(none if warn_high is None else warn_high),
        red_low=np.array(none if red_low is None else red_low),
        red_high=np.array(none if red_high is None else red_high),
        centre=np.zeros(len(spread)),
        spread=np.array(spread),
        standing=Standing.FIRM,
        source=LineSource.OWN,
        units=1_000,
    )


def version_of(
    lines: Mapping[LineKey, Mapping[str, MetricLines]],
    name: str = "t-1",
    references: Mapping[str, BaselineReference] | None = None,
) -> ThresholdVersion:
    """A version for `LANE`."""
    return ThresholdVersion(
        version=name,
        scope=ThresholdScope.of(LANE),
        layers=LANE.layers,
        experts=LANE.experts,
        top_k=LANE.top_k,
        lines=lines,
        references={} if references is None else references,
    )


def book_of(*versions: tuple[int, ThresholdVersion]) -> ThresholdBook:
    """A book in which each version judges from a time on."""
    book = ThresholdBook()
    replace_book(book, *versions)
    return book


def replace_book(book: ThresholdBook, *versions: tuple[int, ThresholdVersion]) -> None:
    """Fill a book anew, as `book_of`."""
    book.replace(
        {version.version: version for _, version in versions},
        {
            ThresholdScope.of(LANE): tuple(
                Activation(time, version.version) for time, version in versions
            )
        },
    )
