"""Shares with intervals that know that tokens of one request are alike."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.jobs.reports.comparison.schema import Estimate
from moescope.jobs.statistics.quantiles import student_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONFIDENCE: Final = 0.95
_FEWEST_GROUPS: Final = 2


def share_of(
    hits: NDArray[Any], tried: NDArray[Any], requests: int | None = None
) -> Estimate | None:
    """A ratio of sums over groups of requests, with its 95 % interval.

    The ratio's standard error is that of its linearisation over groups,
    s² = G/(G − 1) Σ (hits_g − ratio · tried_g)² / (Σ tried)² (Cochran 1977, 6.19), so it holds
    whatever tokens of a request have in common. It says how many independent draws the tokens are
    worth, n = ratio (1 − ratio) / s², and those make a Wilson interval, with Student's t for the
    few groups. Where the groups do not differ at all, a request is worth one draw.

    Args:
        hits: [G], between 0 and `tried`.
        tried: [G].
        requests: How many requests the groups hold; by default one each.

    Returns:
        None when nothing was tried; bounds are None with fewer than two groups.
    """
    total = float(tried.sum())
    if total == 0:
        return None
    ratio = float(hits.sum()) / total
    groups = int(np.count_nonzero(tried))
    if groups < _FEWEST_GROUPS:
        return Estimate(value=ratio, low=None, high=None)
    error = float(((hits - ratio * tried) ** 2).sum()) * groups / (groups - 1) / total**2
    spread = ratio * (1.0 - ratio)
    worth = spread / error if error > 0 and spread > 0 else float(requests or groups)
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)
    low, high = _wilson(ratio, worth, float(student_quantile(groups - 1, z)))
    return Estimate(value=ratio, low=low, high=high)


def _wilson(ratio: float, draws: float, t: float) -> tuple[float, float]:
    """Wilson's score interval (1927)."""
    square = t * t / draws
    centre = (ratio + square / 2.0) / (1.0 + square)
    half = t / (1.0 + square) * (ratio * (1.0 - ratio) / draws + square / (4.0 * draws)) ** 0.5
    return max(0.0, min(ratio, centre - half)), min(1.0, max(ratio, centre + half))
