"""The line that a block would have needed to page, and the tail of those lines."""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Values = NDArray[np.float64]

LEAST_IN_TAIL = 5


def paging_height(values: Values, needed: int, of: int) -> float:
    """The greatest value that `needed` of `of` successive slots exceeded or met.

    A block pages exactly under lines below it; −inf when no line makes it page.

    Args:
        values: float64 [slots with data, in order].
        needed: k.
        of: n of k-of-n.
    """
    if len(values) < needed:
        return -math.inf
    padded = np.concatenate([np.full(of - 1, -np.inf), values])
    rolling = sliding_window_view(padded, of)
    return float(np.partition(rolling, of - needed, axis=1)[:, of - needed].max())


def tail_line(heights: Values, rate: float) -> float:
    """The line that blocks exceed at `rate`, by an exponential tail of the greatest heights.

    The r greatest of B heights (r = √B, at least 5) exceed the next lower one, u, by σ on
    average: peaks over a threshold with shape 0 (Pickands 1975). Since σ is estimated from r
    values only, a fresh block exceeds u + x in a share r / B · (1 + x / (r σ))^−r of cases and
    not r / B · exp(−x / σ): the predictive distribution of an exponential variable (Lomax).
    Shape 0 is chosen and not fitted: with so few values its estimate would move the line more
    than everything else does.

    Args:
        heights: float64 [B].
        rate: Share of blocks, positive.
    """
    descending = np.sort(heights[np.isfinite(heights)])[::-1]
    count = min(max(LEAST_IN_TAIL, math.isqrt(len(heights))), len(descending) - 1)
    if count < 1:
        return float(descending[0]) if len(descending) else -math.inf
    base = float(descending[count])
    scale = float(np.mean(descending[:count] - base))
    rarer = max(1.0, count / len(heights) / rate)
    return base + count * scale * (float(rarer ** (1 / count)) - 1)
