"""Producers: what runs on an inference node."""

from moescope.producers.recorder import Recorder, RecorderCounters
from moescope.producers.torch_probe import attach

__all__ = ["Recorder", "RecorderCounters", "attach"]
