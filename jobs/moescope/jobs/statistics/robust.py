"""Centre and spread that a few bad windows do not move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.jobs.statistics.quantiles import weighted_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAD_TO_SIGMA = 1.4826
"""1 / Φ⁻¹(¾): the median absolute deviation of normal data, times this, is σ."""
_DECILES_TO_SIGMA = 1.0 / 2.5631
_SMALLEST_SHARE = 0.01
_SMALLEST = 1e-6


def centre_and_spread(
    values: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Median, and 1.4826 × median absolute deviation, of each column.

    Where more than half of the values are equal the deviation is 0, and a standardised value
    would be infinite. The spread is then a normal's with the same P10 and P90; if these are
    equal too, 1 % of the centre; and never below 1e-6.

    Args:
        values: float64 [N, …]; NaN is left out.
        weights: float64 [N] of the rows, not negative.

    Returns:
        Both float64 […]; NaN for columns without values; the spread is positive.
    """
    centre = weighted_quantile(values, 0.5, weights)
    spread = MAD_TO_SIGMA * weighted_quantile(np.abs(values - centre), 0.5, weights)
    if (spread == 0).any():
        deciles = weighted_quantile(values, 0.9, weights) - weighted_quantile(values, 0.1, weights)
        spread = np.where(spread == 0, deciles * _DECILES_TO_SIGMA, spread)
        spread = np.where(spread == 0, np.abs(centre) * _SMALLEST_SHARE, spread)
    return centre, np.where(np.isnan(spread), np.nan, np.maximum(spread, _SMALLEST))
