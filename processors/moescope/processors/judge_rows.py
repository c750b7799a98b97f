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
        if lines_of[window] < 0:
            continue
        for layer in range(row_layers):
            row_lines = lines[lines_of[window], layer]
            for metric in range(columns.shape[0]):
                value = values[window, layer, columns[metric]]
                if np.isnan(value) or np.isnan(row_lines[metric, SPREAD]):
                    continue
                bit = np.uint64(1) << np.uint64(metric)
                red, warn = _past(value, row_lines[metric])
                bits[0, window, layer] |= bit
                if warn:
                    bits[1, window, layer] |= bit
                if red:
                    bits[2, window, layer] |= bit
                family = family_of[metric]
                if family < 0:
                    continue
                past = _exceedance(value, row_lines[metric])
                place = worst_place[window, family]
                if past > worst[window, family] or (
                    past == worst[window, family]
                    and _is_before(layer, metric, place, layers, name_order)
                ):
                    worst[window, family] = past
                    place[0] = layer
                    place[1] = metric


@compiled
def _past(value: float, lines: NDArray[np.float64]) -> tuple[bool, bool]:
    """Whether a value is red, and whether it is warn; comparisons with NaN are false."""
    red = value > lines[RED_HIGH] or value < lines[RED_LOW]
    return red, red or value > lines[WARN_HIGH] or value < lines[WARN_LOW]


@compiled
def _exceedance(value: float, lines: NDArray[np.float64]) -> float:
    """As `moescope.processors.metrics.exceedance`, for one value."""
    above = (value - lines[RED_HIGH]) / lines[SPREAD]
    below = (lines[RED_LOW] - value) / lines[SPREAD]
    if np.isnan(above) or below > above:
        return float(below)
    return float(above)


@compiled
def _is_before(
    layer: int,
    metric: int,
    place: NDArray[np.int64],
    layers: NDArray[np.int64],
    name_order: NDArray[np.int64],
) -> bool:
    if place[0] < 0:
        return True
    if layers[layer] != layers[place[0]]:
        return bool(layers[layer] < layers[place[0]])
    return bool(name_order[metric] < name_order[place[1]])
