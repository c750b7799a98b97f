"""Baselines: named, versioned sets of windows known to be healthy, and reading them."""

from moescope.jobs.baselines.events import fired_spans
from moescope.jobs.baselines.selection import Baseline, Span
from moescope.jobs.baselines.stored import read_baseline, store_baseline
from moescope.jobs.baselines.windows import (
    STORED_METRICS,
    BaselineWindows,
    ModelShape,
    model_shape,
    read_windows,
    scopes_of,
)

__all__ = [
    "STORED_METRICS",
    "Baseline",
    "BaselineWindows",
    "ModelShape",
    "Span",
    "fired_spans",
    "model_shape",
    "read_baseline",
    "read_windows",
    "scopes_of",
    "store_baseline",
]
