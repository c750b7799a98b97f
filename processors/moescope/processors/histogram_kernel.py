"""Adds the metric values of many windows to histograms in one compiled pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.errors import InputError
from moescope.core.histograms import SLOTS, all_bin_edges
from moescope.core.metrics import HISTOGRAM_METRICS, METRIC_NAMES
from moescope.processors.compilation import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_HISTOGRAM = -1
"""In `add_to_histograms`: this window enters none."""

_COLUMNS = np.array([METRIC_NAMES.index(metric.name) for metric in HISTOGRAM_METRICS], np.int64)


def empty_histograms(histograms: int, layers: int) -> NDArray[np.int64]:
    """Zeros, int64 [histograms, H, L, 66], for `add_to_histograms`."""
    return np.zeros((histograms, len(HISTOGRAM_METRICS), layers, SLOTS), np.int64)


def add_to_histograms(
    increments: NDArray[np.int64],
    values: NDArray[np.float64],
    histogram: NDArray[np.int64],
    experts: int,
    top_k: int,
    *,
    weight: int = 1,
) -> None:
    """Count every value in its slot; NaN is counted nowhere.

    Args:
        increments: int64 [S, H, L, 66], C-contiguous, added to in place; H in the order of
            `moescope.core.metrics.HISTOGRAM_METRICS`, slots as `moescope.core.histograms`.
        values: float64 [W, L, M], from `finish_counts`.
        histogram: int64 [W]; which of the S histograms a window enters, or `NO_HISTOGRAM`.
        experts: E.
        top_k: k.
        weight: 1 adds; −1 takes back what was added before.

    Raises:
        InputError: Shapes do not fit together, or an index is not below S.
    """
    windows, layers, metrics = values.shape
    fits = (
        increments.shape[1:] == (len(HISTOGRAM_METRICS), layers, SLOTS)
        and metrics == len(METRIC_NAMES)
        and histogram.shape == (windows,)
    )
    if not fits:
        raise InputError(
            "Histograms, values and indices do not fit together.",
            why=f"They are {increments.shape}, {values.shape} and {histogram.shape}.",
        )
    if windows and not NO_HISTOGRAM <= histogram.min() <= histogram.max() < len(increments):
        raise InputError(
            f"A histogram index is not between {NO_HISTOGRAM} and {len(increments) - 1}."
        )
    _add(
        increments,
        np.ascontiguousarray(values),
        np.ascontiguousarray(histogram, np.int64),
        # A copy: the cached edges are read-only, which would be another type to compile for.
        all_bin_edges(experts, top_k).copy(),
        _COLUMNS,
        weight,
    )


@compiled
def _add(  # noqa: PLR0917 (compiled code is called by position)
    increments: NDArray[np.int64],
    values: NDArray[np.float64],
    histogram: NDArray[np.int64],
    edges: NDArray[np.float64],
    columns: NDArray[np.int64],
    weight: int,
) -> None:
    windows, layers, _ = values.shape
    for window in range(windows):
        target = histogram[window]
        if target < 0:
            continue
        for layer in range(layers):
            for metric in range(columns.shape[0]):
                value = values[window, layer, columns[metric]]
                if not np.isnan(value):
                    slot = _slot(edges[metric], value)
                    increments[target, metric, layer, slot] += weight


@compiled
def _slot(edges: NDArray[np.float64], value: float) -> int:
    """How many edges are at or below the value: `numpy.searchsorted(…, side="right")`."""
    low = 0
    high = edges.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if edges[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low
