"""Rows of the `windows` table from finished windows: one per window and layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from moescope.core.clock import NO_TIME
from moescope.core.metrics import DROPS_UNKNOWN, METRIC_NAMES
from moescope.core.tables import LevelReason
from moescope.core.vocabulary import Level, WindowKind
from moescope.storage.columns import chosen, constant, empty_lists, timestamps, vectors
from moescope.storage.lanes import lane_id

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.emission import FinishedWindows, WindowGroup

_REASONS = (
    LevelReason.COVERAGE_UNKNOWN,
    LevelReason.COVERAGE,
    LevelReason.PARTIAL,
    LevelReason.NO_THRESHOLD,
)


def window_rows(
    finished: FinishedWindows,
    kept: NDArray[np.bool_],
    minimum_coverage: float,
    commit_id: int,
) -> pa.Table:
    """Rows of the kept windows of a group.

    Args:
        finished: W windows with their metric values.
        kept: bool [W], which of them to store.
        minimum_coverage: Below it a window says too little.
        commit_id: Number of the transaction.

    Returns:
        Σ kept × L rows, with the columns of `windows`.
    """
    group = finished.group
    lane = group.lane
    layers, experts = len(lane.layers), lane.experts
    window = np.repeat(np.flatnonzero(kept).astype(np.int32), layers)
    rows = len(window)
    coverage = group.seen / np.maximum(group.expected, 1)
    coverage[group.unknown_gap] = np.nan
    values = finished.values[kept].transpose(2, 0, 1).reshape(len(METRIC_NAMES), rows)
    dropped = group.dropped[kept].reshape(rows)
    no_time = np.full(len(group), NO_TIME)
    dated = group.kind in {WindowKind.TIME, WindowKind.TASK}
    start_time = np.where(group.first_time_us == NO_TIME, NO_TIME, group.start)
    columns: dict[str, pa.Array] = {
        "domain": constant(lane.domain, rows),
        "model": constant(lane.model, rows),
        "revision": constant(lane.revision, rows),
        "phase": constant(group.phase, rows),
        "origin": constant(lane.origin, rows),
        "scope_kind": constant(group.scope_kind, rows),
        "scope_value": constant(group.scope_value, rows),
        "window_kind": constant(group.kind, rows),
        "size": pa.array(np.full(rows, group.size, np.int64)),
        "stride": pa.array(np.full(rows, group.stride, np.int64)),
        "start": pa.array(group.start[window]),
        "request": chosen(group.request, window),
        "task": chosen(group.task, window),
        "layer": pa.array(np.tile(np.array(lane.layers, np.int32), rows // max(layers, 1))),
        "fidelity": constant(lane.fidelity, rows),
        "sampling_ratio": pa.array(np.full(rows, lane.sampling_ratio, np.float64)),
        "lane": constant(lane_id(lane), rows),
        "experts": pa.array(np.full(rows, experts, np.int32)),
        "top_k": pa.array(np.full(rows, lane.top_k, np.int32)),
        "node": chosen(group.node, window),
        "scene": chosen(group.scene, window),
        "start_time": timestamps((start_time if dated else no_time)[window]),
        "first_time": timestamps(group.first_time_us[window]),
        "last_time": timestamps(group.last_time_us[window]),
        "close_time": timestamps(group.close_time_us[window]),
        "span": pa.array(_span(group)[window]),
        "tokens": pa.array(finished.tokens[kept].reshape(rows)),
        "requests": pa.array(group.requests[window]),
        "seen": pa.array(group.seen[window]),
        "expected": pa.array(group.expected[window]),
        "lost": pa.array(group.lost[window]),
        "cached": pa.array(group.cached[window]),
        "coverage": pa.array(coverage[window], from_pandas=True),
        "complete": pa.array(group.complete[window]),
        "counts": vectors(group.counts[kept].reshape(-1).astype(np.uint64, copy=False), experts),
        "dropped": pa.array(dropped, mask=dropped == np.uint64(DROPS_UNKNOWN)),
        **{
            name: pa.array(values[number], from_pandas=True)
            for number, name in enumerate(METRIC_NAMES)
        },
        "trailing_reference": chosen([group.trailing_id or None], np.zeros(rows, np.int32)),
        "level": constant(Level.INSUFFICIENT, rows),
        "level_reason": chosen(_REASONS, _reasons(group, coverage, minimum_coverage)[window]),
        "warn_metrics": empty_lists(rows),
        "red_metrics": empty_lists(rows),
        "close_reason": chosen(group.close_reason, window),
        "threshold_version": chosen([None], np.zeros(rows, np.int32)),
        "weight": pa.array(group.weight[window]),
        "row_version": pa.array(group.row_version[window]),
        "commit_id": pa.array(np.full(rows, commit_id, np.int64)),
    }
    return pa.table(columns)


def _span(group: WindowGroup) -> NDArray[np.int64]:
    if group.kind is WindowKind.TOKEN:
        return group.expected
    if group.kind is WindowKind.TASK:
        timeless = group.first_time_us == NO_TIME
        return np.where(timeless, 0, group.last_time_us - group.first_time_us)
    return np.full(len(group), group.size, np.int64)


def _reasons(
    group: WindowGroup, coverage: NDArray[np.float64], minimum_coverage: float
) -> NDArray[np.int32]:
    """Index into `_REASONS` of each window; the first that applies."""
    partial = ~group.complete if group.kind is WindowKind.TOKEN else np.zeros(len(group), bool)
    return np.select(
        [group.unknown_gap, coverage < minimum_coverage, partial], [0, 1, 2], default=3
    ).astype(np.int32)
