"""What the panes of a window add up to. Sums of integers: the order never matters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.metrics import DROPS_UNKNOWN
from moescope.core.vocabulary import WindowKind
from moescope.storage.shared.pane_extras import (
    add_lags,
    add_passes,
    add_similarity,
    merge_positions,
)
from moescope.storage.shared.spans import SECOND_US

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from moescope.core.emission import SharedDelta
    from moescope.core.router_sums import LagSums, PassSums, PositionCounts, SimilaritySums
    from moescope.storage.shared.spans import WindowSpan


_UNKNOWN = np.uint64(DROPS_UNKNOWN)
"""The largest number of all."""
_GAP_UNITS = {WindowKind.TIME: SECOND_US, WindowKind.TASK: 60 * SECOND_US, WindowKind.STEP: 1}


@dataclass(slots=True)
class PaneSums:
    """Sums over the panes of one window.

    Attributes:
        span: The window.
        counts: uint64 [L, E].
        dropped: uint64 [L]; `DROPS_UNKNOWN` where one pane does not tell.
        requests: Distinct (request, phase), as `SharedDelta.request_gaps` defines.
        scene_tokens: Accepted rows per scene.
        router: int64 [L, ROUTER_SUMS]; None where no pane has any.
        lags: Lag overlap of sampled requests, if any.
        passes: Passes, if they are known.
        by_start: Similarity panes that lie inside the window, by start.
        position_parts: Counts at sampled positions, not merged yet.
        is_empty: Whether no pane with rows was added so far.
    """

    span: WindowSpan
    counts: NDArray[np.uint64]
    dropped: NDArray[np.uint64]
    seen: int = 0
    lost: int = 0
    unknown_gap: bool = False
    first_time_us: int = NO_TIME
    last_time_us: int = NO_TIME
    requests: int = 0
    scene_tokens: dict[str, int] = field(default_factory=dict)
    router: NDArray[np.int64] | None = None
    lags: LagSums | None = None
    passes: PassSums | None = None
    by_start: dict[int, SimilaritySums] = field(default_factory=dict)
    position_parts: list[PositionCounts] = field(default_factory=list)
    is_empty: bool = True

    def add(self, delta: SharedDelta) -> None:
        """Add one pane, or one part of it."""
        if delta.similarity is not None:
            self._add_similarity(delta.similarity)
        if delta.passes is not None:
            self._add_passes(delta.passes)
        if is_without_rows(delta):
            return
        if self.is_empty:
            # Most windows are one pane.
            self.counts, self.dropped = delta.counts.astype(np.uint64), delta.dropped
            self.is_empty = False
        else:
            self.counts += delta.counts
            unknown = np.maximum(self.dropped, delta.dropped) == _UNKNOWN
            self.dropped = np.where(unknown, _UNKNOWN, self.dropped + delta.dropped)
        self.seen += delta.seen
        self.lost += delta.lost
        self.unknown_gap |= delta.unknown_gap
        if delta.first_time_us != NO_TIME:
            first = self.first_time_us
            self.first_time_us = (
                delta.first_time_us if first == NO_TIME else min(first, delta.first_time_us)
            )
        self.last_time_us = max(self.last_time_us, delta.last_time_us)
        self.requests += first_in_window(delta, self.span.low)
        for scene, tokens in delta.scene_tokens.items():
            if tokens:
                self.scene_tokens[scene] = self.scene_tokens.get(scene, 0) + tokens
        self._add_profiles(delta)

    def _add_similarity(self, pane: SimilaritySums) -> None:
        if self.span.low <= pane.start_us and pane.start_us + pane.size_us <= self.span.high:
            known = self.by_start.get(pane.start_us)
            self.by_start[pane.start_us] = pane if known is None else add_similarity(known, pane)

    def _add_profiles(self, delta: SharedDelta) -> None:
        if delta.router is not None:
            self.router = delta.router if self.router is None else self.router + delta.router
        if delta.positions is not None:
            self.position_parts.append(delta.positions)
        if delta.lags is not None:
            self.lags = delta.lags if self.lags is None else add_lags(self.lags, delta.lags)

    def _add_passes(self, passes: PassSums) -> None:
        self.passes = passes if self.passes is None else add_passes(self.passes, passes)

    @property
    def positions(self) -> PositionCounts | None:
        """Counts at sampled positions, if any pane has some."""
        return merge_positions(self.position_parts, self.counts.size)

    @property
    def similarity(self) -> list[SimilaritySums]:
        """Similarity panes inside the window, in order of time."""
        return [self.by_start[start] for start in sorted(self.by_start)]


def is_without_rows(delta: SharedDelta) -> bool:
    """Whether a delta tells of no row, not even of a lost one, but of what rows before it were.

    It closes a similarity pane, or passes whose rows came in an earlier commit.
    """
    told = delta.seen or delta.lost or delta.unknown_gap
    return (delta.similarity is not None or delta.passes is not None) and not told


def first_in_window(delta: SharedDelta, window_start: int) -> int:
    """Requests whose first row inside the window lies in this pane.

    Entry g of `request_gaps` counts those whose previous pane is g + 1 seconds, minutes or steps
    back (the last entry: that or more, or none). That pane lies before the window exactly when
    g + 1 is more than the pane's distance from the window's start.
    """
    gaps = delta.request_gaps
    if not len(gaps):
        return delta.requests
    distance = (delta.pane - window_start) // _GAP_UNITS[delta.kind]
    return int(np.add.reduce(gaps[min(distance, len(gaps) - 1) :]))


def add_panes(span: WindowSpan, panes: Iterable[SharedDelta]) -> PaneSums:
    """Sums over the panes of a window; panes outside of it are an error of the caller."""
    lane = span.series.lane
    sums = PaneSums(
        span,
        np.zeros((len(lane.layers), lane.experts), np.uint64),
        np.zeros(len(lane.layers), np.uint64),
    )
    for pane in panes:
        sums.add(pane)
    return sums
