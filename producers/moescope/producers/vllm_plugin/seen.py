"""A pass of the engine, from its end until its rows are recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moescope.producers.vllm_plugin.experts import ExpertMap
    from moescope.producers.vllm_plugin.host import HostCopy
    from moescope.producers.vllm_plugin.requests import NamedRequests
    from moescope.producers.vllm_plugin.step import Step


@dataclass(slots=True)
class SeenPass:
    """A pass that waits for the device, for what becomes of its drafts, or for others like it.

    Attributes:
        step: Whose rows it computed.
        number: Of the pass.
        copy: Its rows on their way to the host.
        requests: Those of the step.
        has_weights: Whether weights were captured.
        experts: Where experts were.
        outcome: What the sampler said of it.
    """

    step: Step
    number: int
    copy: HostCopy
    requests: NamedRequests
    has_weights: bool
    experts: ExpertMap | None
    outcome: Any = None
