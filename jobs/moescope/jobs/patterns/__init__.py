"""Detectors: what a stretch of windows looks like, why, and what to do next."""

from moescope.jobs.patterns.detect import Detection, detect
from moescope.jobs.patterns.finding import Finding
from moescope.jobs.patterns.paired import PairedPull, paired_pull

__all__ = ["Detection", "Finding", "PairedPull", "detect", "paired_pull"]
