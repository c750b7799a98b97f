"""What randomised paired blocks tell: a ratio, its interval, and whether a target is met.

Blocks of the two sides lie beside each other in time, so that a slow minute of the machine hits
both; two sides that are the same (A/A) show what the machine alone does to such a ratio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Verdict = Literal["met", "not met", "inconclusive"]
Better = Literal["higher", "lower"]
RESAMPLES = 4000
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A median ratio with its 95 % interval."""

    low: float
    value: float
    high: float

    def __str__(self) -> str:
        """As tables show it."""
        return f"{self.value:.3f} ({self.low:.3f} – {self.high:.3f})"


def median_interval(episodes: Sequence[Sequence[float]], seed: int = 1) -> Interval:
    """The median of all ratios; its interval resamples episodes, then pairs within each.

    Pairs of one episode (the same processes) share what those processes happen to have: so an
    interval over pairs alone would be too narrow.

    Args:
        episodes: Ratios of the pairs of each episode; none may be empty.
        seed: Of the resampling.

    Raises:
        ValueError: There is nothing to resample.
    """
    if not episodes or not all(len(pairs) for pairs in episodes):
        message = "an interval needs at least one episode, and pairs in each"
        raise ValueError(message)
    values = [np.asarray(pairs, np.float64) for pairs in episodes]
    random = np.random.default_rng(seed)
    medians = [np.median(_resampled(values, random)) for _ in range(RESAMPLES)]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return Interval(float(low), float(np.median(np.concatenate(values))), float(high))


def _resampled(
    values: list[NDArray[np.float64]], random: np.random.Generator
) -> NDArray[np.float64]:
    chosen = random.integers(0, len(values), len(values))
    return np.concatenate([random.choice(values[one], len(values[one])) for one in chosen])


def judge(own: Interval, same: Interval, target: float, better: Better) -> Verdict:
    """Whether a ratio meets its target.

    Args:
        own: Of the two sides.
        same: Of two sides that are the same, in the same run.
        target: The ratio to reach (`higher`) or to stay at or under (`lower`).
        better: Which way is good.

    Returns:
        `inconclusive` where the interval of A/A is as wide as what the target allows, or the own
        interval holds the target.
    """
    allowed = abs(1 - target)
    if max(same.high - 1, 1 - same.low) >= allowed:
        return "inconclusive"
    if better == "higher":
        is_met, is_missed = own.low >= target, own.high < target
    else:
        is_met, is_missed = own.high <= target, own.low > target
    if is_met:
        return "met"
    return "not met" if is_missed else "inconclusive"
