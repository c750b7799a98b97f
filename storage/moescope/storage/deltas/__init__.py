"""Emissions that come through the deltas topic: read, checked, merged and applied."""

from moescope.storage.deltas.errors import DeltasRewoundError, ProcessorsDivergedError
from moescope.storage.deltas.reader import DeltasReader

__all__ = ["DeltasReader", "DeltasRewoundError", "ProcessorsDivergedError"]
