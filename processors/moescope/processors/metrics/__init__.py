"""Metric arithmetic in plain numpy: what the registry in `moescope.core.metrics` declares.

>>> from moescope.processors.metrics import count_metrics
>>> metrics = count_metrics([[16, 16, 0, 0]], top_k=2)
>>> float(metrics["max_violation"][0])
1.0
"""

from moescope.processors.metrics.counts import MAX_ASSIGNMENTS, count_metrics
from moescope.processors.metrics.divergence import (
    Divergence,
    divergence,
    smoothed_reference,
    uniform_reference,
)
from moescope.processors.metrics.exceeding import exceedance
from moescope.processors.metrics.mix import (
    UNKNOWN_MIX,
    BaselineLoads,
    DistinctMixes,
    baseline_loads,
    distinct_mixes,
    mix_shift,
    routing_shift,
    scene_mix,
)
from moescope.processors.metrics.noise import (
    FLOOR_TOKENS,
    FloorTable,
    noise_floor,
    noise_floor_table,
    uniform_floor_table,
)
from moescope.processors.metrics.passes import pass_imbalance
from moescope.processors.metrics.ranks import rank_imbalance
from moescope.processors.metrics.requests import positional_agreement, request_similarity
from moescope.processors.metrics.router import (
    averages_of_sums,
    lag_overlap,
    overlap_chance,
    router_metrics,
)
from moescope.processors.metrics.values import metric_values

__all__ = [
    "FLOOR_TOKENS",
    "MAX_ASSIGNMENTS",
    "UNKNOWN_MIX",
    "BaselineLoads",
    "DistinctMixes",
    "Divergence",
    "FloorTable",
    "averages_of_sums",
    "baseline_loads",
    "count_metrics",
    "distinct_mixes",
    "divergence",
    "exceedance",
    "lag_overlap",
    "metric_values",
    "mix_shift",
    "noise_floor",
    "noise_floor_table",
    "overlap_chance",
    "pass_imbalance",
    "positional_agreement",
    "rank_imbalance",
    "request_similarity",
    "router_metrics",
    "routing_shift",
    "scene_mix",
    "smoothed_reference",
    "uniform_floor_table",
    "uniform_reference",
]
