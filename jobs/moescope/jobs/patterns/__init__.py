"""Detectors: what a stretch of windows looks like, why, and what to do next."""

from moescope.jobs.patterns.detect import LOOK_BACK_US, Detection, detect
from moescope.jobs.patterns.finding import Finding
from moescope.jobs.patterns.paired import PairedPull, paired_pull

__all__ = ["LOOK_BACK_US", "Detection", "Finding", "PairedPull", "detect", "paired_pull"]
