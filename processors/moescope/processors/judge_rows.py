"""The compiled part of judging: every value of many windows against its lines, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.processors.compilation import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

WARN_LOW, WARN_HIGH, RED_LOW, RED_HIGH, SPREAD = range(5)
"""Columns of packed lines."""
PACKED = 5


@compiled
def judge_rows(  # noqa: PLR0917 (compiled code is called by position)
    values: NDArray[np.float64],
    columns: NDArray[np.int64],
    lines: NDArray[np.float64],
    lines_of: NDArray[np.int64],
    family_of: NDArray[np.int64],
    name_order: NDArray[np.int64],
    layers: NDArray[np.int64],
    bits: NDArray[np.uint64],
    worst: NDArray[np.float64],
    worst_place: NDArray[np.int64],
) -> None:
    """Fill `bits`, `worst` and `worst_place`; windows without lines are left as they are.

    Args:
        values: float64 [W, L, M].
        columns: int64 [J], the column in `values` of each judged metric.
        lines: float64 [S, L, J, PACKED]; NaN where there is no line.
        lines_of: int64 [W], which of the S sets of lines judges a window; negative: none.
        family_of: int64 [J], the family that a metric's exceedances enter; negative: none.
        name_order: int64 [J], place of each metric in the order of names: equal exceedances go to
            the smallest layer, then to the first name.
        layers: int64 [L], index of each decoder layer.
        bits: uint64 [3, W, L], zeros: judged, warn, red; bit i stands for the i-th metric.
        worst: float64 [W, F], −inf: the largest exceedance of each family.
        worst_place: int64 [W, F, 2], −1: layer's place and metric's place of it.
    """
    windows, row_layers, _ = values.shape
    for window in range(windows):
        mine = lines_of[window]
        if mine < 0:
            continue
        for layer in range(row_layers):
            judged = warn = red = np.uint64(0)
            for metric in range(columns.shape[0]):
                value = values[window, layer, columns[metric]]
                spread = lines[mine, layer, metric, SPREAD]
                if np.isnan(value) or np.isnan(spread):
                    continue
                bit = np.uint64(1) << np.uint64(metric)
                low, high = (
                    lines[mine, layer, metric, RED_LOW],
                    lines[mine, layer, metric, RED_HIGH],
                )
                judged |= bit
                # Comparisons with NaN are false.
                if value > high or value < low:
                    red |= bit
                    warn |= bit
                elif (
                    value > lines[mine, layer, metric, WARN_HIGH]
                    or value < lines[mine, layer, metric, WARN_LOW]
                ):
                    warn |= bit
                family = family_of[metric]
                if family < 0:
                    continue
                past = _exceedance(value, low, high, spread)
                if past > worst[window, family] or (
                    past == worst[window, family]
                    and _is_before(
                        layer,
                        metric,
                        worst_place[window, family, 0],
                        worst_place[window, family, 1],
                        layers,
                        name_order,
                    )
                ):
                    worst[window, family] = past
                    worst_place[window, family, 0] = layer
                    worst_place[window, family, 1] = metric
            bits[0, window, layer] = judged
            bits[1, window, layer] = warn
            bits[2, window, layer] = red


@compiled
def _exceedance(value: float, low: float, high: float, spread: float) -> float:
    """As `moescope.processors.metrics.exceedance`, for one value."""
    above = (value - high) / spread
    below = (low - value) / spread
    return below if np.isnan(above) or below > above else above


@compiled
def _is_before(  # noqa: PLR0917 (compiled code is called by position)
    layer: int,
    metric: int,
    worst_layer: int,
    worst_metric: int,
    layers: NDArray[np.int64],
    name_order: NDArray[np.int64],
) -> bool:
    if worst_layer < 0:
        return True
    if layers[layer] != layers[worst_layer]:
        return bool(layers[layer] < layers[worst_layer])
    return bool(name_order[metric] < name_order[worst_metric])
