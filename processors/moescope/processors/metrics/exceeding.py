"""How far a value is past its red line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.thresholds import MetricLines


def exceedance(values: NDArray[np.float64], lines: MetricLines) -> NDArray[np.float64]:
    """Spreads past the red line: positive exactly where a value is red.

    (v − red_high) / spread or (red_low − v) / spread; where there are both lines, the larger.

    Args:
        values: float64 [..., L], a metric's values; NaN is null.
        lines: Of that metric for the L layers.

    Returns:
        float64 [..., L]; NaN for null values and at layers without a red line.
    """
    above = (values - lines.red_high) / lines.spread
    below = (lines.red_low - values) / lines.spread
    return np.fmax(above, below)
