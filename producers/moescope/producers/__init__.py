"""Producers: what runs on an inference node."""

from typing import TYPE_CHECKING

from moescope.core.batch import Ranks
from moescope.producers.recorder import Recorder
from moescope.producers.recording.counters import RecorderCounters

if TYPE_CHECKING:
    from moescope.producers.torch_probe import RequestFacts, attach

__all__ = ["Ranks", "Recorder", "RecorderCounters", "RequestFacts", "attach"]


def __getattr__(name: str) -> object:
    # Engines that record by themselves never need the probe: it is imported when asked for.
    if name in {"RequestFacts", "attach"}:
        from moescope.producers import torch_probe  # noqa: PLC0415 - imported when asked for

        return getattr(torch_probe, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
