"""A scenario: model, fleet, traffic and what is planted in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moescope.producers.simulator.engine import EngineSpec
from moescope.producers.simulator.model import (
    DOMAIN_INDEX,
    ModelSpec,
    RouterSpec,
    SimulationError,
)

if TYPE_CHECKING:
    from moescope.producers.simulator.incidents import Incident


@dataclass(frozen=True, slots=True)
class Scene:
    """A class of traffic.

    Attributes:
        share: Its weight among the scenes.
        domain: What it mostly consists of.
        second_domain, second_share: What the rest consists of, in stretches.
    """

    name: str
    share: float
    domain: str
    second_domain: str = "prose"
    second_share: float = 0.15

    def __post_init__(self) -> None:
        """Refuse unknown domains."""
        for name in (self.domain, self.second_domain):
            if name not in DOMAIN_INDEX:
                raise SimulationError(
                    f"The scene {self.name!r} has an unknown domain {name!r}.",
                    next_step=f"Choose from {sorted(DOMAIN_INDEX)}.",
                )


DEFAULT_SCENES = (
    Scene("chat", 0.4, "chat", "prose", 0.25),
    Scene("code", 0.3, "code", "chat", 0.15),
    Scene("extract", 0.2, "json", "prose", 0.2),
    Scene("reasoning", 0.1, "math", "chat", 0.15),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSpec:
    """What users send to one node. Lengths are log-normal, in tokens.

    Attributes:
        tasks_per_second: New conversations per node.
        burst_factor, burst_share: Share of seconds in bursts, and how much busier they are.
        turns_mean, turns_max: Turns of a conversation, geometric.
        think_s: Mean time between an answer and the next turn, exponential.
        sticky: Chance that a further turn goes to the same node.
    """

    tasks_per_second: float = 0.5
    burst_factor: float = 3.0
    burst_share: float = 0.1
    prompt_median: float = 130.0
    prompt_sigma: float = 0.7
    prompt_max: int = 2048
    output_median: float = 130.0
    output_sigma: float = 0.6
    output_max: int = 1024
    turns_mean: float = 1.5
    turns_max: int = 5
    think_s: float = 6.0
    sticky: float = 0.7
    scenes: tuple[Scene, ...] = DEFAULT_SCENES


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """A training run instead of inference traffic: each node is a data-parallel rank.

    Attributes:
        step_us: Time of an optimizer step.
        sequences, tokens: Per rank and step, and tokens of each.
        sorted_run: 0: domains are shuffled. Else that many steps of one domain follow each
            other.
    """

    step_us: int = 500_000
    sequences: int = 4
    tokens: int = 128
    sorted_run: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a simulation is made of, save seed, duration and fleet size.

    Attributes:
        training: With it, `traffic` and `engine` do not apply.
        incidents: What is planted, twins included.
        twin_of: Name of the incident scenario whose healthy twin this is.
        record_entropy: Whether score entropies are recorded too.
    """

    name: str
    description: str
    model: ModelSpec = field(default_factory=ModelSpec)
    router: RouterSpec = field(default_factory=RouterSpec)
    engine: EngineSpec = field(default_factory=EngineSpec)
    traffic: TrafficSpec = field(default_factory=TrafficSpec)
    training: TrainingSpec | None = None
    incidents: tuple[Incident, ...] = ()
    twin_of: str = ""
    record_entropy: bool = False


@dataclass(frozen=True, slots=True)
class Planted:
    """An incident with its place in event time: [start, end) in µs."""

    incident: Incident
    start_us: int
    end_us: int

    def is_active(self, node: int, time_us: int) -> bool:
        """Whether it concerns a node at a time."""
        nodes = self.incident.nodes
        return (nodes is None or node in nodes) and self.start_us <= time_us < self.end_us


SECOND_US = 1_000_000


def plant(scenario: Scenario, start_us: int, duration_s: int) -> tuple[Planted, ...]:
    """Place a scenario's incidents in event time, on whole seconds, each at least one long."""
    planted = []
    for incident in scenario.incidents:
        first = min(int(incident.begin * duration_s), duration_s - 1)
        end = max(int(incident.end * duration_s), first + 1)
        planted.append(Planted(incident, start_us + first * SECOND_US, start_us + end * SECOND_US))
    return tuple(planted)
