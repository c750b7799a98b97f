"""What the panes of a window add up to. Sums of integers: the order never matters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.metrics import DROPS_UNKNOWN
from moescope.core.vocabulary import WindowKind
from moescope.storage.shared.spans import SECOND_US

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from moescope.core.emission import SharedDelta
    from moescope.storage.shared.spans import WindowSpan


_GAP_UNITS = {WindowKind.TIME: SECOND_US, WindowKind.TASK: 60 * SECOND_US, WindowKind.STEP: 1}


@dataclass(slots=True)
class PaneSums:
    """Sums over the panes of one window.

    Attributes:
        counts: uint64 [L, E].
        dropped: uint64 [L]; `DROPS_UNKNOWN` where one pane does not tell.
        requests: Distinct (request, phase), as `SharedDelta.request_gaps` defines.
        scenes: Scenes with an accepted row.
    """

    counts: NDArray[np.uint64]
    dropped: NDArray[np.uint64]
    seen: int = 0
    lost: int = 0
    unknown_gap: bool = False
    first_time_us: int = NO_TIME
    last_time_us: int = NO_TIME
    requests: int = 0
    scenes: set[str] = field(default_factory=set)

    def add(self, delta: SharedDelta, window_start: int) -> None:
        """Add one pane (or one part of it) to a window that starts at `window_start`."""
        self.counts += delta.counts
        unknown = np.uint64(DROPS_UNKNOWN)
        self.dropped = np.where(
            (self.dropped == unknown) | (delta.dropped == unknown),
            unknown,
            self.dropped + delta.dropped,
        )
        self.seen += delta.seen
        self.lost += delta.lost
        self.unknown_gap |= delta.unknown_gap
        if delta.first_time_us != NO_TIME:
            first = self.first_time_us
            self.first_time_us = (
                delta.first_time_us if first == NO_TIME else min(first, delta.first_time_us)
            )
        self.last_time_us = max(self.last_time_us, delta.last_time_us)
        self.requests += first_in_window(delta, window_start)
        self.scenes.update(scene for scene, tokens in delta.scene_tokens.items() if tokens)


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
    return int(gaps[min(distance, len(gaps) - 1) :].sum())


def add_panes(span: WindowSpan, panes: Iterable[SharedDelta]) -> PaneSums:
    """Sums over the panes of a window; panes outside of it are an error of the caller."""
    lane = span.series.lane
    sums = PaneSums(
        np.zeros((len(lane.layers), lane.experts), np.uint64),
        np.zeros(len(lane.layers), np.uint64),
    )
    for pane in panes:
        sums.add(pane, span.low)
    return sums
