"""Histogram bins of every metric, and which bin a value belongs to.

A histogram has 64 bins between an underflow and an overflow slot. The bins follow from the
registry and from E and k alone, so histograms of the same model add up over time and machines.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.errors import InputError
from moescope.core.metrics import HISTOGRAM_METRICS, Scale

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from moescope.core.metrics import Metric

BINS = 64
UNDERFLOW = 0
"""Slot of values below the range; bins are slots 1 … 64."""
OVERFLOW = BINS + 1
"""Slot of values above the range."""
SLOTS = BINS + 2
NO_SLOT = -1
"""What `bin_index` gives for NaN: null values are counted nowhere."""

_ROUNDING = 1e-9
"""How far, relative to the range, a value may round past its bound and still be inside."""


@lru_cache(maxsize=1024)
def bin_edges(metric: Metric, experts: int, top_k: int) -> NDArray[np.float64]:
    """Edges of a metric's 64 bins, ascending; bin i holds edges[i] ≤ value < edges[i + 1].

    The outer edges stand a billionth of the range outside, so that a value that rounds past its
    attainable bound is not taken for an outlier. A metric that can take one value only (k = E)
    gets a range of width 1 above it.

    Args:
        metric: From the registry; its `histogram` says the scale and the range.
        experts: E.
        top_k: k.

    Returns:
        float64 [65], read-only.

    Raises:
        InputError: The metric has no histogram.
    """
    spec = metric.histogram
    if spec is None:
        raise InputError(
            f"The metric {metric.name!r} has no histogram.",
            next_step="Use one of moescope.core.metrics.HISTOGRAM_METRICS.",
        )
    low, high = metric.bounds(experts, top_k)
    low = spec.low if spec.low is not None else low
    high = spec.high if spec.high is not None else high
    if math.isnan(low):
        low, high = 0.0, 1.0
    if high <= low:
        high = low + 1.0
    if spec.scale is Scale.LOG:
        edges = np.exp2(np.linspace(math.log2(low), math.log2(high), BINS + 1))
    else:
        edges = np.linspace(low, high, BINS + 1)
    edges[0] -= _ROUNDING * (edges[1] - edges[0])
    edges[-1] += _ROUNDING * (edges[-1] - edges[-2])
    edges.setflags(write=False)
    return edges


@lru_cache(maxsize=256)
def all_bin_edges(experts: int, top_k: int) -> NDArray[np.float64]:
    """Edges of every metric that has a histogram, in the order of `HISTOGRAM_METRICS`.

    Returns:
        float64 [H, 65], read-only.
    """
    edges = np.stack([bin_edges(metric, experts, top_k) for metric in HISTOGRAM_METRICS])
    edges.setflags(write=False)
    return edges


def bin_index(metric: Metric, values: ArrayLike, experts: int, top_k: int) -> NDArray[np.int64]:
    """Slot of each value in the metric's histogram.

    Args:
        metric: From the registry.
        values: float64 [...]; NaN is null.
        experts: E.
        top_k: k.

    Returns:
        int64 [...]: `UNDERFLOW`, 1 … 64, `OVERFLOW`, or `NO_SLOT` for NaN.

    Raises:
        InputError: The metric has no histogram.
    """
    numbers = np.asarray(values, np.float64)
    slots = np.searchsorted(bin_edges(metric, experts, top_k), numbers, side="right")
    return np.where(np.isnan(numbers), NO_SLOT, slots).astype(np.int64)
