"""Calibration: from a healthy baseline to lines, references and paging rules, and their life."""

from moescope.jobs.calibration.calibrate import Calibration, calibrate
from moescope.jobs.calibration.differences import LineChange, diff
from moescope.jobs.calibration.held_out import (
    FEW_UNITS,
    NO_LINE,
    HeldOut,
    HeldOutLeftOut,
    HeldOutRate,
    held_out_check,
)
from moescope.jobs.calibration.lifecycle import (
    activate,
    earliest_activation,
    rollback,
    standing_versions,
    version_before,
)
from moescope.jobs.calibration.options import CalibrationOptions
from moescope.jobs.calibration.stored import store_calibration

__all__ = [
    "FEW_UNITS",
    "NO_LINE",
    "Calibration",
    "CalibrationOptions",
    "HeldOut",
    "HeldOutLeftOut",
    "HeldOutRate",
    "LineChange",
    "activate",
    "calibrate",
    "diff",
    "earliest_activation",
    "held_out_check",
    "rollback",
    "standing_versions",
    "store_calibration",
    "version_before",
]
