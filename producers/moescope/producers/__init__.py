"""Producers: what runs on an inference node."""

from moescope.producers.recorder import Recorder, RecorderCounters

__all__ = ["Recorder", "RecorderCounters"]
