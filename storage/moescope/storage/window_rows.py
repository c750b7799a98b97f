"""Rows of the `windows` table from finished windows: one per window and layer."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from moescope.core.clock import NO_TIME
from moescope.core.metrics import DROPS_UNKNOWN, METRIC_NAMES
from moescope.core.router_sums import LAGS
from moescope.core.vocabulary import WindowKind
from moescope.storage.columns import chosen, constant, timestamps, vectors
from moescope.storage.lanes import lane_id
from moescope.storage.levels import level_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from moescope.core.emission import WindowGroup
    from moescope.storage.levels import Kept


def window_rows(parts: Sequence[Kept], minimum_coverage: float, commit_id: int) -> pa.Table:
    """Rows of the kept windows of finished groups of one lane, built side by side.

    Args:
        parts: At least one group, all of the same lane.
        minimum_coverage: Below it a window says too little.
        commit_id: Number of the transaction.

    Returns:
        Σ kept × L rows, with the columns of `windows`.
    """
    lane = parts[0][0].group.lane
    layers, experts = len(lane.layers), lane.experts
    groups = [finished.group for finished, _ in parts]
    kept = [mask for _, mask in parts]
    windows = sum(int(mask.sum()) for mask in kept)
    rows = windows * layers
    window = np.repeat(np.arange(windows, dtype=np.int32), layers)
    part = np.repeat(np.arange(len(parts), dtype=np.int32), [mask.sum() for mask in kept])[window]

    def each(get: Callable[[WindowGroup], NDArray[Any]]) -> NDArray[Any]:
        """Values per window and layer, from values per window."""
        picked = [get(group)[mask] for group, mask in zip(groups, kept, strict=True)]
        return np.concatenate(picked)[window]

    def text(get: Callable[[WindowGroup], Sequence[str]]) -> pa.Array:
        """The same for texts per window."""
        picked: list[str] = []
        for group, mask in zip(groups, kept, strict=True):
            picked.extend(compress(get(group), mask))
        return chosen(picked, window)

    def same(get: Callable[[WindowGroup], str | None]) -> pa.Array:
        """The same for texts per group."""
        return chosen([get(group) for group in groups], part)

    def per_layer(arrays: Iterable[NDArray[Any]]) -> NDArray[Any]:
        """Values per window and layer, from arrays [W, L, …]."""
        return np.concatenate([array[mask] for array, mask in zip(arrays, kept, strict=True)])

    values = per_layer(finished.values for finished, _ in parts)
    values = values.transpose(2, 0, 1).reshape(len(METRIC_NAMES), rows)
    counts = per_layer(group.counts for group in groups).reshape(-1)
    dropped = per_layer(group.dropped for group in groups).reshape(rows)
    tokens = per_layer(finished.tokens for finished, _ in parts).reshape(rows)
    mixes = [
        mix
        for group, mask in zip(groups, kept, strict=True)
        for mix in compress(group.scene_tokens or [{}] * len(group), mask)
    ]
    columns: dict[str, pa.Array] = {
        "domain": constant(lane.domain, rows),
        "model": constant(lane.model, rows),
        "revision": constant(lane.revision, rows),
        "phase": same(lambda group: group.phase),
        "origin": constant(lane.origin, rows),
        "scope_kind": same(lambda group: group.scope_kind),
        "scope_value": same(lambda group: group.scope_value),
        "window_kind": same(lambda group: group.kind),
        "size": pa.array(np.array([group.size for group in groups], np.int64)[part]),
        "stride": pa.array(np.array([group.stride for group in groups], np.int64)[part]),
        "start": pa.array(each(lambda group: group.start)),
        "request": text(lambda group: group.request),
        "task": text(lambda group: group.task),
        "layer": pa.array(np.tile(np.array(lane.layers, np.int32), windows)),
        "fidelity": constant(lane.fidelity, rows),
        "sampling_ratio": pa.array(np.full(rows, lane.sampling_ratio, np.float64)),
        "lane": constant(lane_id(lane), rows),
        "experts": pa.array(np.full(rows, experts, np.int32)),
        "top_k": pa.array(np.full(rows, lane.top_k, np.int32)),
        "node": text(lambda group: group.node),
        "scene": text(lambda group: group.scene),
        "scenes": _lists(mixes, pa.string(), window, sorted),
        "scene_tokens": _lists(mixes, pa.int64(), window, _tokens_by_name),
        "band": text(lambda group: group.bands),
        "start_time": timestamps(each(_start_time)),
        "first_time": timestamps(each(lambda group: group.first_time_us)),
        "last_time": timestamps(each(lambda group: group.last_time_us)),
        "close_time": timestamps(each(lambda group: group.close_time_us)),
        "span": pa.array(each(_span)),
        "tokens": pa.array(tokens),
        "requests": pa.array(each(lambda group: group.requests)),
        "seen": pa.array(each(lambda group: group.seen)),
        "expected": pa.array(each(lambda group: group.expected)),
        "lost": pa.array(each(lambda group: group.lost)),
        "coverage": pa.array(each(lambda group: group.coverage), from_pandas=True),
        "complete": pa.array(each(lambda group: group.complete)),
        "counts": vectors(counts.astype(np.uint64, copy=False), experts),
        "dropped": pa.array(dropped, mask=dropped == np.uint64(DROPS_UNKNOWN)),
        **{
            name: pa.array(values[number], from_pandas=True)
            for number, name in enumerate(METRIC_NAMES)
        },
        "lag_overlap": _lag_overlap(parts, rows, layers),
        "trailing_reference": same(lambda group: group.trailing_id or None),
        "placement": same(lambda group: group.placement_id or None),
        "close_reason": text(lambda group: group.close_reason),
        **level_columns(parts, minimum_coverage),
        "weight": pa.array(each(lambda group: group.weight)),
        "row_version": pa.array(each(lambda group: group.row_version)),
        "commit_id": pa.array(np.full(rows, commit_id, np.int64)),
    }
    return pa.table(columns)


def _lists(
    mixes: Sequence[Mapping[str, int]],
    kind: pa.DataType,
    window: NDArray[np.int32],
    values: Callable[[Mapping[str, int]], list[Any]],
) -> pa.Array:
    """A list per window, repeated for its layers."""
    return pa.array([values(mix) for mix in mixes], pa.list_(kind)).take(pa.array(window))


def _tokens_by_name(mix: Mapping[str, int]) -> list[int]:
    return [mix[scene] for scene in sorted(mix)]


def _lag_overlap(parts: Sequence[Kept], rows: int, layers: int) -> pa.Array:
    """Lag overlap [LAGS] per window and layer; null where requests were not sampled."""
    if all(finished.lag_overlap is None for finished, _ in parts):
        return pa.nulls(rows, pa.list_(pa.float64()))
    values: list[list[float] | None] = []
    for finished, mask in parts:
        if finished.lag_overlap is None:
            values += [None] * (int(mask.sum()) * layers)
            continue
        for overlap in finished.lag_overlap[mask].reshape(-1, LAGS):
            values.append(None if np.isnan(overlap).all() else overlap.tolist())
    return pa.array(values, pa.list_(pa.float64()))


def _start_time(group: WindowGroup) -> NDArray[np.int64]:
    dated = group.kind in {WindowKind.TIME, WindowKind.TASK}
    absent = (group.first_time_us == NO_TIME) | (not dated)
    return np.where(absent, NO_TIME, group.start)


def _span(group: WindowGroup) -> NDArray[np.int64]:
    if group.kind is WindowKind.TOKEN:
        return group.expected
    if group.kind is WindowKind.TASK:
        timeless = group.first_time_us == NO_TIME
        return np.where(timeless, 0, group.last_time_us - group.first_time_us)
    return np.full(len(group), group.size, np.int64)
