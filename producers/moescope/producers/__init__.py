"""Producers: what runs on an inference node."""

from typing import TYPE_CHECKING

from moescope.producers.recorder import Recorder
from moescope.producers.recording.counters import RecorderCounters

if TYPE_CHECKING:
    from moescope.producers.torch_probe import attach

__all__ = ["Recorder", "RecorderCounters", "attach"]


def __getattr__(name: str) -> object:
    # Engines that record by themselves never need the probe: it is imported when asked for.
    if name == "attach":
        from moescope.producers.torch_probe import attach  # noqa: PLC0415 - imported when asked for

        return attach
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
