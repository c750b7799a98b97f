"""Panes of open shared windows in memory, so that most windows close without reading any back.

The `deltas` table stays the truth: what the cache does not know for certain (panes from before
a restart, or dropped for room) is read from there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.router_sums import PositionCounts
from moescope.core.vocabulary import WindowKind
from moescope.storage.shared import Series, add_panes
from moescope.storage.shared.spans import LATENESS_US, SECOND_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moescope.core.emission import SharedDelta
    from moescope.storage.shared import DomainClock, PaneSums, WindowShapes, WindowSpan

ROOM_BYTES = 256 << 20


class PaneCache:
    """Deltas by series and pane.

    Args:
        shapes: Declared windows; a pane is dropped when its last one has closed.
        stored: Panes that the table holds from before, which the cache does not have.
        room: Most bytes to hold.
    """

    def __init__(
        self, shapes: WindowShapes, stored: Iterable[SharedDelta], room: int = ROOM_BYTES
    ) -> None:
        self._shapes = shapes
        self._room = room
        self._bytes = 0
        self._panes: dict[Series, dict[int, list[SharedDelta]]] = {}
        self._missing_to: dict[Series, int] = {}
        for delta in stored:
            self._miss(Series.of(delta), delta.pane)

    def add(self, delta: SharedDelta) -> None:
        """Remember a delta that is being stored."""
        series = Series.of(delta)
        delta = _narrow(delta)
        self._panes.setdefault(series, {}).setdefault(delta.pane, []).append(delta)
        self._bytes += _bytes(delta)
        if self._bytes > self._room:
            self._drop_all()

    def sums(self, span: WindowSpan) -> PaneSums | None:
        """Sums over a window's panes; None when only the table knows all of them."""
        if span.low <= self._missing_to.get(span.series, NO_TIME):
            return None
        held = self._panes.get(span.series, {})
        inside = _inside(span, held)
        return add_panes(span, [delta for pane in inside for delta in held[pane]])

    def forget_closed(self, domain: str, clock: DomainClock, closed: Iterable[WindowSpan]) -> None:
        """Drop panes of which every window has closed.

        Args:
            domain: Whose clock moved.
            clock: Where it stands.
            closed: Windows that closed now; task windows have no overlap, so their panes go.
        """
        for span in closed:
            if span.series.kind is WindowKind.TASK:
                self._drop(
                    span.series,
                    [
                        pane
                        for pane in self._panes.get(span.series, ())
                        if span.low <= pane < span.high
                    ],
                )
        for series in [known for known in self._panes if known.lane.domain == domain]:
            if series.kind is not WindowKind.TASK:
                self._drop(
                    series,
                    [
                        pane
                        for pane in self._panes[series]
                        if self._is_over(series.kind, pane, clock)
                    ],
                )

    def _is_over(self, kind: WindowKind, pane: int, clock: DomainClock) -> bool:
        end = self._shapes.last_end(kind, pane)
        if kind is WindowKind.STEP:
            return end <= clock.step_reached
        return end < clock.reached_us - 2 * LATENESS_US

    def _drop(self, series: Series, dropped: list[int]) -> None:
        held = self._panes.get(series, {})
        for pane in dropped:
            self._bytes -= sum(_bytes(delta) for delta in held.pop(pane))
        if dropped:
            # A late delta may still reach these panes: then the table has to be asked.
            self._miss(series, max(dropped))
        if not held:
            self._panes.pop(series, None)

    def _drop_all(self) -> None:
        for series, held in self._panes.items():
            self._miss(series, max(held))
        self._panes.clear()
        self._bytes = 0

    def _miss(self, series: Series, pane: int) -> None:
        self._missing_to[series] = max(self._missing_to.get(series, NO_TIME), pane)


def _inside(span: WindowSpan, held: Mapping[int, object]) -> list[int]:
    """Held panes of a window, in order."""
    if span.series.kind is WindowKind.TIME and (span.high - span.low) // SECOND_US < len(held):
        return [pane for pane in range(span.low, span.high, SECOND_US) if pane in held]
    return sorted(pane for pane in held if span.low <= pane < span.high)


def _narrow(delta: SharedDelta) -> SharedDelta:
    """The same with counts at sampled positions in a third of the room; they are most of it."""
    positions = delta.positions
    if positions is None:
        return delta
    width = np.min_scalar_type(int(positions.count.max(initial=0)))
    narrow = PositionCounts(
        positions.index.astype(np.int32),
        positions.count.astype(width),
    )
    return replace(delta, positions=narrow)


def _bytes(delta: SharedDelta) -> int:
    """What a delta's arrays take."""
    size = delta.counts.nbytes
    if delta.router is not None:
        size += delta.router.nbytes
    if delta.positions is not None:
        size += delta.positions.index.nbytes + delta.positions.count.nbytes
    if delta.similarity is not None:
        size += delta.similarity.weighted.nbytes
    if delta.lags is not None:
        size += delta.lags.overlap.nbytes + delta.lags.pairs.nbytes
    if delta.passes is not None:
        size += 3 * delta.passes.passes.nbytes
    return size
