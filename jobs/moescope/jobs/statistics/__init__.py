"""Quantiles of clustered windows and what they are worth; no input or output.

Windows are no independent draws: those of one request, or of one block of event time, are alike.
Every function here that speaks of uncertainty takes the sampling unit of each window.
"""

from moescope.jobs.statistics.bands import (
    Pool,
    RateBand,
    TwoSamples,
    draw_two_samples,
    rate_bands,
)
from moescope.jobs.statistics.quantiles import (
    RankedWindows,
    cluster_quantiles,
    weighted_quantile,
)
from moescope.jobs.statistics.robust import centre_and_spread
from moescope.jobs.statistics.units import (
    BOUNDED_UNITS,
    FIRM_UNITS,
    MINIMUM_UNITS,
    RED_UNITS,
    WARN_UNITS,
    standing_of,
)

__all__ = [
    "BOUNDED_UNITS",
    "FIRM_UNITS",
    "MINIMUM_UNITS",
    "RED_UNITS",
    "WARN_UNITS",
    "Pool",
    "RankedWindows",
    "RateBand",
    "TwoSamples",
    "centre_and_spread",
    "cluster_quantiles",
    "draw_two_samples",
    "rate_bands",
    "standing_of",
    "weighted_quantile",
]
