"""Closed shared windows as groups that a finisher takes: comparable windows side by side."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.emission import WindowGroup
from moescope.core.router_sums import ROUTER_SUMS
from moescope.core.vocabulary import ScopeKind, WindowKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from moescope.core.batch import Placement
    from moescope.core.emission import LaneKey, TrailingReference
    from moescope.core.vocabulary import CloseReason
    from moescope.storage.shared.panes import PaneSums
    from moescope.storage.shared.spans import WindowSpan

GROUP_BYTES = 64 << 20
"""Most counts in one group: bounds what finishing needs at once."""


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """One closed shared window with its sums.

    `placement_id` is the placement that a window was finished with; None: not finished yet.
    """

    span: WindowSpan
    sums: PaneSums
    reason: CloseReason
    row_version: int = 1
    placement_id: str | None = None

    @property
    def start(self) -> int:
        """Start as stored: of task windows the first row's event time."""
        if self.span.series.kind is not WindowKind.TASK:
            return self.span.low
        return 0 if self.sums.first_time_us == NO_TIME else self.sums.first_time_us

    @property
    def close_time_us(self) -> int:
        """Logical close time: a time window's end, else the last row's event time."""
        if self.span.series.kind is WindowKind.TIME:
            return self.span.high
        return self.sums.last_time_us


def group_windows(
    windows: Iterable[ClosedWindow],
    find_reference: Callable[[LaneKey, str, int], TrailingReference | None],
    find_placement: Callable[[ClosedWindow], tuple[str, Placement | None]] = lambda _: ("", None),
) -> Iterator[WindowGroup]:
    """Groups of windows of the same lane, phase, kind, size, stride, scope, reference, placement.

    Args:
        windows: With at least one accepted row each.
        find_reference: (lane, phase, logical close time) → the trailing reference.
        find_placement: Window → id of the placement, and the placement.
    """
    members: dict[tuple[object, ...], list[ClosedWindow]] = defaultdict(list)
    references: dict[str, TrailingReference | None] = {"": None}
    placements: dict[str, Placement | None] = {}
    for window in windows:
        series = window.span.series
        reference = None
        if window.close_time_us != NO_TIME:
            reference = find_reference(series.lane, series.phase, window.close_time_us)
        name = reference.reference_id if reference else ""
        references[name] = reference
        placement_id, placement = find_placement(window)
        placements[placement_id] = placement
        key: tuple[object, ...] = (
            series.lane,
            series.phase,
            series.kind,
            series.scope_kind,
            series.scope_value,
            window.span.size,
            window.span.stride,
            name,
            placement_id,
        )
        members[key].append(window)
    for group_key, found in members.items():
        lane = found[0].span.series.lane
        most = max(1, GROUP_BYTES // (8 * len(lane.layers) * lane.experts or 1))
        ordered = sorted(found, key=lambda window: (window.start, window.span.series.task))
        for begin in range(0, len(ordered), most):
            name, placement_id = str(group_key[-2]), str(group_key[-1])
            yield _group(
                ordered[begin : begin + most],
                references[name],
                placement_id,
                placements[placement_id],
            )


def _group(
    windows: list[ClosedWindow],
    reference: TrailingReference | None,
    placement_id: str,
    placement: Placement | None,
) -> WindowGroup:
    span = windows[0].span
    series = span.series
    sums = [window.sums for window in windows]
    size = len(windows)
    seen = np.array([each.seen for each in sums], np.int64)
    lost = np.array([each.lost for each in sums], np.int64)
    unknown_gap = np.array([each.unknown_gap for each in sums], np.bool_)
    scene_tokens = [each.scene_tokens for each in sums]
    node = series.scope_value if series.scope_kind is ScopeKind.NODE else ""
    return WindowGroup(
        lane=series.lane,
        phase=series.phase,
        kind=series.kind,
        size=span.size,
        stride=span.stride,
        scope_kind=series.scope_kind,
        scope_value=series.scope_value,
        start=np.array([window.start for window in windows], np.int64),
        first_time_us=np.array([each.first_time_us for each in sums], np.int64),
        last_time_us=np.array([each.last_time_us for each in sums], np.int64),
        close_time_us=np.array([window.close_time_us for window in windows], np.int64),
        request=[""] * size,
        task=[window.span.series.task for window in windows],
        scene=[next(iter(mix)) if len(mix) == 1 else "" for mix in scene_tokens],
        node=[node] * size,
        seen=seen,
        expected=seen + lost,
        lost=lost,
        unknown_gap=unknown_gap,
        requests=np.array([each.requests for each in sums], np.int64),
        close_reason=[window.reason for window in windows],
        complete=(lost == 0) & ~unknown_gap,
        weight=np.ones(size, np.float64),
        row_version=np.array([window.row_version for window in windows], np.int32),
        counts=np.stack([each.counts for each in sums]),
        dropped=np.stack([each.dropped for each in sums]),
        trailing=reference.counts if reference else None,
        trailing_id=reference.reference_id if reference else "",
        scene_tokens=scene_tokens,
        router=_router(sums),
        passes=[] if all(each.passes is None for each in sums) else [each.passes for each in sums],
        placement=placement,
        placement_id=placement_id,
        **_requests_compared(span, sums),
    )


def _router(sums: list[PaneSums]) -> NDArray[np.int64] | None:
    if all(each.router is None for each in sums):
        return None
    nothing = np.zeros((len(sums[0].counts), ROUTER_SUMS), np.int64)
    return np.stack([nothing if each.router is None else each.router for each in sums])


def _requests_compared(span: WindowSpan, sums: list[PaneSums]) -> dict[str, list[Any]]:
    """Positions, similarity and lags, which only time windows of scope `all` have."""
    series = span.series
    if series.kind is not WindowKind.TIME or series.scope_kind is not ScopeKind.ALL:
        return {}
    return {
        "positions": [each.positions for each in sums],
        "similarity": [each.similarity for each in sums],
        "lags": [each.lags for each in sums],
    }
