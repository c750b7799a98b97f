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
from moescope.processors.metrics.noise import (
    FLOOR_TOKENS,
    FloorTable,
    noise_floor,
    noise_floor_table,
    uniform_floor_table,
)
from moescope.processors.metrics.values import metric_values

__all__ = [
    "FLOOR_TOKENS",
    "MAX_ASSIGNMENTS",
    "Divergence",
    "FloorTable",
    "count_metrics",
    "divergence",
    "metric_values",
    "noise_floor",
    "noise_floor_table",
    "smoothed_reference",
    "uniform_floor_table",
    "uniform_reference",
]
