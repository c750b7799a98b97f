"""The named scenarios: a healthy fleet, a demonstration, each incident and its healthy twin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moescope.producers.simulator.engine import EngineSpec
from moescope.producers.simulator.incidents import (
    ClockSkew,
    ColdExperts,
    DroppedRows,
    EngineFault,
    ExpertCollapse,
    FewShot,
    HotExpert,
    Incident,
    JsonPulse,
    LongGreedy,
    SharedPrefix,
    SilentNode,
    SilentRoutingChange,
    SingleDomain,
    SlowNode,
)
from moescope.producers.simulator.model import SimulationError
from moescope.producers.simulator.scenario import Scenario, TrafficSpec, TrainingSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moescope.producers.simulator.incidents import FaultKind

_UNCACHED = EngineSpec(prefix_caching=False)
_CACHED = EngineSpec(prefix_caching=True)
_BUSY = EngineSpec(prefix_caching=False, max_concurrency=32)


def _with_twin(
    name: str,
    description: str,
    incident: Incident,
    *,
    engine: EngineSpec = _CACHED,
    twin_engine: EngineSpec | None = None,
    training: TrainingSpec | None = None,
) -> Iterator[Scenario]:
    """An incident's scenario, and its twin: the same with caching, or without the effect."""
    incident = replace(incident, name=name)
    scenario = Scenario(
        name=name,
        description=description,
        engine=engine,
        incidents=(incident,),
        training=training,
    )
    yield scenario
    cached = twin_engine is not None
    yield replace(
        scenario,
        name=f"{name}_twin",
        description=f"Healthy twin of {name}: "
        + ("the prefix cache computes the beginning once." if cached else "the effect is absent."),
        engine=twin_engine or engine,
        incidents=(incident if cached else replace(incident, effect=False),),
        twin_of=name,
    )


def _incident_scenarios() -> Iterator[Scenario]:
    prefix = SharedPrefix(name="", tokens=256)
    yield from _with_twin(
        "fixed_system_prompt_aligned",
        "Every request begins with one system prompt, in bursts that compute it together.",
        replace(prefix, group=12, period_s=6),
        engine=_UNCACHED,
        twin_engine=_CACHED,
    )
    yield from _with_twin(
        "fixed_system_prompt_unaligned",
        "Every request begins with one system prompt; requests arrive as usual.",
        prefix,
        engine=_UNCACHED,
        twin_engine=_CACHED,
    )
    yield from _with_twin(
        "common_prefix_concurrency",
        "Groups of requests about one document run side by side.",
        SharedPrefix(name="", tokens=384, domain="prose", group=16, period_s=8, fresh=True),
        engine=_BUSY,
        twin_engine=replace(_BUSY, prefix_caching=True),
    )
    yield from _with_twin(
        "json_pulse",
        "Generations alternate between JSON and their own domain.",
        JsonPulse(name=""),
    )
    yield from _with_twin(
        "single_domain",
        "All traffic turns to JSON extraction: the mix shifts, the router is fine.",
        SingleDomain(name=""),
    )
    yield from _with_twin(
        "long_greedy",
        "Long greedy generations end in loops; the twin samples just as long.",
        LongGreedy(name=""),
    )
    yield from _with_twin(
        "few_shot",
        "Examples before each question pull the routing of the answer.",
        FewShot(name=""),
        engine=_UNCACHED,
    )
    yield from _with_twin(
        "hot_expert", "A router bias favours one expert.", HotExpert(name="", layers=(5,), expert=3)
    )
    yield from _with_twin(
        "cold_experts",
        "A quarter of a layer's experts is hardly selected any more.",
        ColdExperts(name="", layers=(9,)),
    )
    yield from _with_twin(
        "expert_collapse",
        "A layer works with a few experts only, more so in each of five steps.",
        ExpertCollapse(name="", layers=(11,), stages=5),
    )
    yield from _with_twin(
        "silent_routing_change",
        "Some experts trade places in every layer under an unchanged revision.",
        SilentRoutingChange(name=""),
    )
    faults: tuple[tuple[FaultKind, str], ...] = (
        ("zero_layer", "A fused kernel bypasses the hook: one layer reads as zeros."),
        ("duplicate_ids", "A third of the rows repeats an expert."),
        ("warmup_rows", "Warm-up rows, marked as such."),
        ("unmarked_warmup_rows", "Identical warm-up rows, passed off as prompts."),
        ("padding_rows", "Padding rows, flagged."),
    )
    for fault, description in faults:
        yield from _with_twin(
            f"engine_fault_{fault}",
            description,
            EngineFault(
                name="",
                fault=fault,
                layers=(7,),
                share=1.0 if fault == "zero_layer" else 1.0 / 3.0,
            ),
        )
    yield from _with_twin(
        "dropped_rows",
        "The ring of one node overflows: rows are lost, and counted.",
        DroppedRows(name="", nodes=(0,), end=0.8),
    )
    yield from _with_twin(
        "slow_node",
        "One node's batches arrive a quarter of a minute late.",
        SlowNode(name="", nodes=(0,), end=0.8),
    )
    yield from _with_twin(
        "silent_node",
        "One node says nothing for a while.",
        SilentNode(name="", nodes=(0,), end=0.8),
    )
    yield from _with_twin(
        "clock_skew",
        "One node's clock runs a minute and a half ahead.",
        ClockSkew(name="", nodes=(0,), end=0.8),
    )
    yield from _with_twin(
        "training_expert_collapse",
        "A training run loses experts of one layer, step by step.",
        ExpertCollapse(name="", layers=(11,), stages=10, bias=-3.0),
        training=TrainingSpec(),
    )


def _demo() -> Scenario:
    return Scenario(
        name="demo",
        description="A fleet with one incident after another, each on nodes of its own.",
        engine=EngineSpec(prefix_caching=False),
        traffic=TrafficSpec(tasks_per_second=0.3),
        incidents=(
            SharedPrefix(
                name="fixed_system_prompt", begin=0.5, end=0.58, group=12, period_s=6, tokens=256
            ),
            HotExpert(name="hot_expert", begin=0.62, end=0.69, layers=(5,), expert=3),
            SilentRoutingChange(name="silent_routing_change", begin=0.73, end=0.79),
            LongGreedy(name="long_greedy", begin=0.81, end=0.87, nodes=(0, 1)),
            DroppedRows(name="dropped_rows", begin=0.6, end=0.66, nodes=(2,), share=0.5),
            SilentNode(name="silent_node", begin=0.7, end=0.76, nodes=(3,)),
            EngineFault(
                name="engine_fault",
                begin=0.88,
                end=0.92,
                nodes=(4,),
                fault="zero_layer",
                layers=(7,),
            ),
            ExpertCollapse(name="expert_collapse", begin=0.94, end=1.0, layers=(11,)),
        ),
    )


def _scenarios() -> Iterator[Scenario]:
    yield Scenario(name="healthy", description="Conversations on a healthy fleet.")
    yield Scenario(
        name="healthy_uncached",
        description="The same without prefix caching: further turns compute their history.",
        engine=_UNCACHED,
    )
    yield _demo()
    yield Scenario(
        name="training",
        description="A training run on shuffled data.",
        training=TrainingSpec(),
    )
    yield Scenario(
        name="training_sorted",
        description="A training run whose data come domain by domain.",
        training=TrainingSpec(sorted_run=100),
    )
    yield from _incident_scenarios()


SCENARIOS: Final[Mapping[str, Scenario]] = {scenario.name: scenario for scenario in _scenarios()}


def scenario_named(name: str) -> Scenario:
    """A scenario of the registry.

    Raises:
        SimulationError: There is none of that name.
    """
    if name not in SCENARIOS:
        raise SimulationError(
            f"There is no scenario {name!r}.", next_step=f"Choose from {', '.join(SCENARIOS)}."
        )
    return SCENARIOS[name]
