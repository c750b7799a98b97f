"""Which shares below a quantile chance explains: binomial tails for any real number of draws."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_STEPS = 400
_CONVERGED = 1e-12
_TINY = 1e-300
_BISECTIONS = 34
_GRID = np.geomspace(2.0, 3e4, 96)
"""Beyond it the distances no longer change by more than 1 %."""

_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


class Levels(NamedTuple):
    """Shares of the draws at or below the true quantile that are not surprising.

    Attributes:
        low, high: float64; above `high` (below `low`) the tail is at most the given one. 1 where
            even all draws being below would not surprise.
    """

    low: Values
    high: Values


def explained_levels(draws: Values, p: float, tail: float) -> Levels:
    """Shares k/n for which neither P(Bin(n, p) ≥ k) nor P(Bin(n, p) ≤ k) is below `tail`.

    Args:
        draws: float64 n, effective numbers of draws, not only whole ones.
        p: The quantile's level.
        tail: One-sided.

    Returns:
        Interpolated in a table over log n, in units of the standard deviation √(p(1 − p)/n).
    """
    low, high = _table(p, tail)
    n = np.clip(draws, _GRID[0], _GRID[-1])
    step = np.sqrt(p * (1.0 - p) / n)
    place = np.log(n)
    grid = np.log(_GRID)
    upper = p + step * np.interp(place, grid, high)
    # Nothing is surprising where all n below has more than that probability: p^n > tail.
    upper = np.where(n * math.log(p) > math.log(tail), 1.0, np.minimum(upper, 1.0))
    return Levels(np.maximum(p - step * np.interp(place, grid, low), 0.0), upper)


@lru_cache(maxsize=32)
def _table(p: float, tail: float) -> tuple[Values, Values]:
    """Distances of both levels from p in standard deviations, for each n of the grid."""
    n = _GRID

    def at_least(share: Values) -> Values:
        """P(Bin(n, p) ≥ n·share)."""
        k = n * share
        return np.where(k <= 0, 1.0, incomplete_beta(np.maximum(k, _TINY), n - k + 1.0, p))

    def at_most(share: Values) -> Values:
        """P(Bin(n, p) ≤ n·share)."""
        left = n - n * share
        return np.where(
            left <= 0, 1.0, incomplete_beta(np.maximum(left, _TINY), n - left + 1.0, 1.0 - p)
        )

    near, far = np.full(len(n), p), np.ones(len(n))
    for _ in range(_BISECTIONS):
        middle = 0.5 * (near + far)
        inside = at_least(middle) > tail
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    high = near
    near, far = np.full(len(n), p), np.zeros(len(n))
    for _ in range(_BISECTIONS):
        middle = 0.5 * (near + far)
        inside = at_most(middle) > tail
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    step = np.sqrt(p * (1.0 - p) / n)
    return (p - near) / step, (high - p) / step


def incomplete_beta(a: Values, b: Values, x: float) -> Values:
    """Regularised incomplete beta function I_x(a, b), elementwise.

    The continued fraction of Lentz, on the side of the mean where it converges quickly (DLMF
    8.17.22). P(Bin(n, p) ≥ k) = I_p(k, n − k + 1).

    Args:
        a: Positive.
        b: Positive, same shape.
        x: 0 < x < 1.
    """
    swap = x >= (a + 1.0) / (a + b + 2.0)
    first, second = np.where(swap, b, a), np.where(swap, a, b)
    at = np.where(swap, 1.0 - x, x)
    log_front = (
        _log_gamma(a + b) - _log_gamma(a) - _log_gamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    value = np.exp(log_front) * _fraction(first, second, at) / first
    result: Values = np.where(swap, 1.0 - value, value)
    return result


def _fraction(a: Values, b: Values, x: Values) -> Values:
    c = np.ones_like(a)
    d = 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    h = d
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        d = 1.0 / _away_from_zero(1.0 + even * d)
        c = _away_from_zero(1.0 + even / c)
        h = h * d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        d = 1.0 / _away_from_zero(1.0 + odd * d)
        c = _away_from_zero(1.0 + odd / c)
        h = h * d * c
        if np.abs(d * c - 1.0).max() < _CONVERGED:
            break
    return h


def _away_from_zero(values: Values) -> Values:
    return np.where(np.abs(values) < _TINY, _TINY, values)
