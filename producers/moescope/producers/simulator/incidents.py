"""What can be planted in a simulated fleet. Declarations only; `effect=False` is the twin.

A twin has the same traffic as its incident, without what is wrong: the right verdict for it is
"not present".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moescope.producers.simulator.model import DOMAIN_INDEX, SimulationError

FaultKind = Literal[
    "zero_layer", "duplicate_ids", "warmup_rows", "unmarked_warmup_rows", "padding_rows"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something planted.

    Attributes:
        name: Label.
        begin, end: Shares of the simulated duration, 0 to 1; rounded to whole seconds.
        nodes: Indices of the nodes concerned; None for all.
        effect: False for the healthy twin.
    """

    name: str
    begin: float = 0.5
    end: float = 1.0
    nodes: tuple[int, ...] | None = None
    effect: bool = True

    def __post_init__(self) -> None:
        """Refuse an interval that is none."""
        if not 0 <= self.begin < self.end <= 1:
            raise SimulationError(
                f"The incident {self.name!r} cannot last from {self.begin} to {self.end}.",
                next_step="Give shares of the duration: 0 <= begin < end <= 1.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix(Incident):
    """Requests begin with the same tokens.

    Attributes:
        tokens: Length of the shared beginning. domain: Its kind of content.
        share: Share of the requests that have it.
        group, period_s: With a group, that many requests arrive at one instant every period,
            instead of the usual arrivals; 0 leaves arrivals as they are.
        fresh: Each group shares a beginning of its own (a document), not one for all.
    """

    tokens: int = 256
    domain: str = "json"
    share: float = 1.0
    group: int = 0
    period_s: int = 6
    fresh: bool = False

    def __post_init__(self) -> None:
        """Check the domain too."""
        Incident.__post_init__(self)
        _known_domain(self.domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonPulse(Incident):
    """Generations alternate between JSON and their own domain, every `half_period` tokens."""

    half_period: int = 64
    output_tokens: int = 768


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleDomain(Incident):
    """New tasks are all of one scene and domain: the traffic changed, not the router."""

    scene: str = "extract"
    domain: str = "json"
    share: float = 1.0

    def __post_init__(self) -> None:
        """Check the domain too."""
        Incident.__post_init__(self)
        _known_domain(self.domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongGreedy(Incident):
    """Long generations that end in a loop; the twin is as long, and does not."""

    output_tokens: int = 1024
    loop_after: int = 192
    loop_period: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShot(Incident):
    """Questions behind shared examples that also pull the routing of what follows.

    The twin asks the same questions (same tasks) without examples.
    """

    tokens: int = 384
    domain: str = "json"
    pull: float = 0.6
    share: float = 1.0

    def __post_init__(self) -> None:
        """Check the domain too."""
        Incident.__post_init__(self)
        _known_domain(self.domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingIncident(Incident):
    """The router itself changes.

    Attributes:
        layers: Places in the model's list of MoE layers (beyond its end: the last); None for all.
        stages: The change comes in that many equal steps over the interval.
    """

    layers: tuple[int, ...] | None = None
    stages: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HotExpert(RoutingIncident):
    """One expert's logit is raised."""

    expert: int = 0
    bias: float = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdExperts(RoutingIncident):
    """Some experts' logits are lowered until they are hardly ever selected."""

    experts: int = 16
    bias: float = -6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCollapse(RoutingIncident):
    """All but a few experts are lowered: the layer works with the survivors."""

    survivors: int = 12
    bias: float = -4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentRoutingChange(RoutingIncident):
    """Some experts trade places although the revision says that nothing changed."""

    experts: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFault(Incident):
    """What arrives is not what the router chose.

    Attributes:
        fault: `zero_layer`: ids of the layers are all 0. `duplicate_ids`: the last id of a row
            repeats the first. `warmup_rows`: identical rows, in phase warmup;
            `unmarked_warmup_rows`: the same, passed off as prefill. `padding_rows`: flagged
            padding.
        layers: Places in the model's list of MoE layers (beyond its end: the last); None for all.
        share: Share of the rows concerned (ids), or rows added per second (rows).
        rows: Rows added each time.
    """

    fault: FaultKind
    layers: tuple[int, ...] | None = None
    share: float = 1.0
    rows: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRows(Incident):
    """The ring overwrites the oldest share of each second's rows, and counts them."""

    share: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNode(Incident):
    """Batches arrive late."""

    delay_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentNode(Incident):
    """Nothing arrives, not even heartbeats; afterwards the ring's losses are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSkew(Incident):
    """The node's clock is wrong by some seconds."""

    offset_s: float = 90.0


def layer_places(layers: tuple[int, ...] | None, count: int) -> list[int]:
    """Places of the layers concerned in a model with that many MoE layers."""
    places = range(count) if layers is None else layers
    return sorted({min(place, count - 1) for place in places})


def _known_domain(name: str) -> None:
    if name not in DOMAIN_INDEX:
        raise SimulationError(
            f"There is no domain {name!r}.", next_step=f"Choose from {sorted(DOMAIN_INDEX)}."
        )
