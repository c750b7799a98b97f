"""Units of a baseline that do not look like the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.core.metrics import JUDGED_METRICS, Side
from moescope.jobs.statistics import centre_and_spread, weighted_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.jobs.calibration.sample import Sample

FAR = 6.0
"""Spreads of log units; a normal is that far out once in 10⁹."""
TRIMMED_SHARE = 0.001
"""If more units than that would go, the metric is skewed, or the baseline is bad: nothing goes."""


class Suspects(NamedTuple):
    """What the filter found in one kind of window.

    Attributes:
        units: int64, units that look foreign.
        trimmed: Whether they are left out.
    """

    units: NDArray[np.int64]
    trimmed: bool


def suspect_units(sample: Sample) -> Suspects:
    """Units whose windows, taken together, are far out on the bad side of some metric.

    On a log scale, since most metrics are skewed, and by the unit's median over its windows and
    layers, since a unit goes whole or not at all. Per band and scene, so that a rare
    scene is not taken for a fault. Where values are not all positive, a metric is not looked at.
    """
    found: set[int] = set()
    cells = [member for key, member in sample.cells() if key.scene] or [
        member for _, member in sample.cells()
    ]
    for metric in JUDGED_METRICS:
        values = sample.values.get(metric.name)
        if values is None or np.isnan(values).all() or np.nanmin(values) <= 0:
            continue
        logs = np.log(values)
        centred = np.full(logs.shape, np.nan)
        for member in cells:
            own = logs[member]
            centred[member] = own - weighted_quantile(own, 0.5)
        level = weighted_quantile(centred.T, 0.5)
        known = ~np.isnan(level)
        found.update(_far_units(level[known], sample.units[known], metric.side).tolist())
    units = np.array(sorted(found), np.int64)
    return Suspects(units, 0 < len(units) <= TRIMMED_SHARE * sample.unit_count)


def _far_units(
    level: NDArray[np.float64], units: NDArray[np.int64], side: Side
) -> NDArray[np.int64]:
    """Units whose median level is far from that of the others."""
    if not len(level):
        return units
    order = np.lexsort((level, units))
    names, first, size = np.unique(units[order], return_index=True, return_counts=True)
    medians = level[order][first + (size - 1) // 2]
    centre, spread = centre_and_spread(medians[:, None])
    scaled = (medians - centre) / spread
    if side is Side.LOW:
        scaled = -scaled
    elif side is Side.BOTH:
        scaled = np.abs(scaled)
    far: NDArray[np.int64] = names[scaled > FAR]
    return far
