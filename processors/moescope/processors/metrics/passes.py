"""How unevenly forward passes load the experts, from additive sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.router_sums import FIXED_POINT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.router_sums import PassSums


def pass_imbalance(sums: PassSums) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and greatest imbalance over passes: E · max(c) / Σ c of each.

    Args:
        sums: Of a window's panes.

    Returns:
        Two float64 [L]; NaN where no pass has a row.
    """
    known = sums.passes > 0
    mean = sums.imbalance / (FIXED_POINT * np.where(known, sums.passes, 1))
    return np.where(known, mean, np.nan), np.where(known, sums.largest / FIXED_POINT, np.nan)
