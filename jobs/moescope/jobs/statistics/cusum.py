"""Cumulative sums over one run's own history: for runs that have no healthy baseline.

A training run is watched while it changes, and has a few hundred windows, never a thousand healthy
ones. So each value is compared with those before it (the self-starting CUSUM of Hawkins, 1987,
Journal of Quality Technology 19(3)): nothing has to be known of the run in advance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALLOWANCE: Final = 0.5
"""Half of the shift, in standard deviations, that is to be found soonest: one."""

_OVERSHOOT: Final = 1.166
_FEWEST_BEFORE: Final = 2


def self_starting_scores(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores of a series that are independent and standard normal while nothing changes.

    Value n is compared with the mean and the spread of the values before it; the ratio follows
    Student's law with n − 2 degrees of freedom if the values are normal, and is brought to the
    normal one (Wallace 1959, Annals of Mathematical Statistics 30(4), formula for the tail).

    Args:
        values: [n] or [n, series], in order.

    Returns:
        The same shape; 0 where too few values lie before, or all of them are equal.
    """
    series = np.atleast_2d(values.T).T
    count = np.arange(len(series), dtype=np.float64)[:, None]  # values before each
    with np.errstate(invalid="ignore", divide="ignore"):
        before = np.cumsum(series, axis=0) - series
        mean = before / count
        # Centred on the first value, so that the difference of squares keeps its digits.
        centred = series - series[:1]
        squares = np.cumsum(centred**2, axis=0) - centred**2
        centre = mean - series[:1]
        variance = (squares - count * centre**2) / (count - 1)
        ratio = np.sqrt(count / (count + 1)) * (series - mean) / np.sqrt(variance)
        freedom = count - 1
        score = np.sqrt(freedom * np.log1p(ratio**2 / freedom))
        score *= (8 * freedom + 1) / (8 * freedom + 3)
        score = np.copysign(score, ratio)
    usable = np.isfinite(score) & (count >= _FEWEST_BEFORE) & (variance > 0)
    return np.where(usable, score, 0.0).reshape(values.shape)


def upper_cusum(scores: NDArray[np.float64], allowance: float = ALLOWANCE) -> NDArray[np.float64]:
    """Sums S ← max(0, S + score − allowance), from 0.

    Args:
        scores: [n] or [n, series].
        allowance: What a score has to exceed to count.
    """
    sums = np.zeros(scores.shape[1:])
    found = np.empty_like(scores, dtype=np.float64)
    for index, row in enumerate(scores):
        sums = np.maximum(0.0, sums + row - allowance)
        found[index] = sums
    return found


def mean_run_length(threshold: float, allowance: float = ALLOWANCE) -> float:
    """Scores between two false alarms on average, one-sided (Siegmund 1985, Sequential Analysis).

    Args:
        threshold: Where the sum alarms.
        allowance: As of the sum.
    """
    far = 2 * allowance * (threshold + _OVERSHOOT)
    return (math.exp(far) - far - 1) / (2 * allowance**2)


def threshold_for(run_length: float, allowance: float = ALLOWANCE) -> float:
    """The threshold at which a healthy series alarms once in `run_length` scores."""
    low, high = 0.0, 1.0
    while mean_run_length(high, allowance) < run_length:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if mean_run_length(middle, allowance) < run_length else (low, middle)
        )
    return high


def chi_square_score(statistic: NDArray[np.float64], freedom: int) -> NDArray[np.float64]:
    """Standard normal scores of χ² values (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * freedom)
    scores: NDArray[np.float64] = (np.cbrt(statistic / freedom) - (1 - spread)) / math.sqrt(spread)
    return scores
