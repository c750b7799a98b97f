"""Time and step windows: which are open, and which a delta comes too late for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.vocabulary import CloseReason, WindowKind
from moescope.storage.shared.spans import (
    LATENESS_US,
    RETENTION_US,
    Series,
    WindowSpan,
    starts_around,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moescope.core.emission import SharedDelta
    from moescope.storage.shared.clocks import DomainClock
    from moescope.storage.shared.spans import WindowShapes

IntervalSeries = tuple[Series, int, int]
"""A series with the size and stride of its windows."""


def closes_at(span: WindowSpan) -> int:
    """Watermark or step at which a time or step window closes."""
    return span.high + lateness(span.series.kind)


def lateness(kind: WindowKind) -> int:
    """How far past its end a time or step window closes."""
    return LATENESS_US if kind is WindowKind.TIME else 0


def _limit(kind: WindowKind, clock: DomainClock) -> int:
    return clock.watermark_us if kind is WindowKind.TIME else clock.step_low


def _reached(kind: WindowKind, clock: DomainClock) -> int:
    return clock.reached_us if kind is WindowKind.TIME else clock.step_reached


def is_closed(span: WindowSpan, clock: DomainClock) -> bool:
    """Whether a window had closed when the clock stood there."""
    return closes_at(span) <= _reached(span.series.kind, clock)


def is_too_late(span: WindowSpan, clock: DomainClock) -> bool:
    """Whether late rows no longer change a closed window.

    Step windows have no event time of their own; there the store decides, by whether it still
    has every pane.
    """
    if span.series.kind is not WindowKind.TIME:
        return False
    return closes_at(span) + RETENTION_US <= clock.reached_us


class IntervalWindows:
    """Starts of the open time and step windows."""

    def __init__(self, shapes: WindowShapes) -> None:
        self._shapes = shapes
        self._open: dict[IntervalSeries, set[int]] = {}

    def spans(self, delta: SharedDelta) -> Iterator[WindowSpan]:
        """Windows that a pane is part of."""
        series = Series.of(delta)
        for size, stride in self._shapes.of(delta.kind):
            for start in starts_around(delta.pane, size, stride):
                yield WindowSpan(series, size, stride, start, start + size)

    def may_be_late(self, delta: SharedDelta, clock: DomainClock) -> bool:
        """Whether a window that a pane is part of may have closed; asks for no window."""
        # A window ends behind each of its panes.
        return delta.pane + lateness(delta.kind) < _reached(delta.kind, clock)

    def open_all(self, delta: SharedDelta) -> None:
        """Note that all windows of a pane have, or will have, one."""
        series = Series.of(delta)
        for size, stride in self._shapes.of(delta.kind):
            starts = self._open.setdefault((series, size, stride), set())
            starts.update(starts_around(delta.pane, size, stride))

    def has_windows(self, kind: WindowKind) -> bool:
        """Whether windows of a kind are declared."""
        return bool(self._shapes.of(kind))

    def open(self, span: WindowSpan) -> None:
        """Note that a window has, or will have, a pane."""
        key = (span.series, span.size, span.stride)
        self._open.setdefault(key, set()).add(span.low)

    def due(self, domain: str, clock: DomainClock) -> Iterator[tuple[WindowSpan, CloseReason]]:
        """Close what is due."""
        for key, starts in list(self._open.items()):
            series, size, stride = key
            if series.lane.domain != domain:
                continue
            last = _limit(series.kind, clock) - lateness(series.kind) - size
            for low in sorted(low for low in starts if low <= last):
                starts.remove(low)
                span = WindowSpan(series, size, stride, low, low + size)
                yield span, _reason(span, clock)
            if not starts:
                del self._open[key]


def _reason(span: WindowSpan, clock: DomainClock) -> CloseReason:
    if not is_closed(span, clock):
        # No step or watermark got there: whoever would have shown one was sealed, in this commit
        # or, of training, in an earlier one.
        return CloseReason.SEALED
    return CloseReason.WATERMARK if span.series.kind is WindowKind.TIME else CloseReason.STEP_PASSED
