"""The truth about a simulated log, in a file beside it that no processor reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moescope.producers.simulator.incidents import (
    ColdExperts,
    ExpertCollapse,
    HotExpert,
    Incident,
    RoutingIncident,
    SilentRoutingChange,
    layer_places,
)
from moescope.producers.simulator.router_states import affected_experts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from moescope.producers.simulator.requests import RequestTable
    from moescope.producers.simulator.router import Router
    from moescope.producers.simulator.scenario import Planted, Scenario

LABELS_FILE = "labels.json"
_BOOKKEEPING = ("name", "begin", "end", "nodes", "effect", "layers")


def write_labels(
    path: Path,
    scenario: Scenario,
    planted: Sequence[Planted],
    *,
    node_names: Sequence[str],
    router: Router,
    table: RequestTable,
    seed: int,
    span_us: tuple[int, int],
) -> None:
    """Write what was planted where, as JSON.

    Args:
        path: File to write.
        scenario: What was simulated.
        planted: Its incidents in event time, in the scenario's order.
        node_names: Of the whole fleet.
        router: The healthy router.
        table: All requests of the simulation.
        seed: Of the simulation.
        span_us: Event time of the simulation, [start, end).
    """
    by_incident: dict[str, list[str]] = {}
    for plan in table.plans:
        for name in plan.incidents:
            by_incident.setdefault(name, []).append(plan.id)
    labels = [
        {
            **_label(item, scenario, node_names, router, salt),
            "requests": by_incident.get(item.incident.name, []),
        }
        for item, salt in zip(planted, _salts(planted), strict=True)
    ]
    document = {
        "scenario": scenario.name,
        "twin_of": scenario.twin_of,
        "seed": seed,
        "model": scenario.model.name,
        "revision": scenario.model.revision,
        "start_us": span_us[0],
        "end_us": span_us[1],
        "incidents": labels,
    }
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _salts(planted: Sequence[Planted]) -> list[int]:
    """Place of each incident among the effective routing incidents, as in RouterStates."""
    salts, routing = [], 0
    for item in planted:
        counts = isinstance(item.incident, RoutingIncident) and item.incident.effect
        salts.append(routing if counts else -1)
        routing += counts
    return salts


def _label(
    item: Planted,
    scenario: Scenario,
    node_names: Sequence[str],
    router: Router,
    salt: int,
) -> dict[str, Any]:
    incident = item.incident
    nodes = range(len(node_names)) if incident.nodes is None else incident.nodes
    layers = _layers(incident, scenario)
    return {
        "name": incident.name,
        "kind": type(incident).__name__,
        "present": incident.effect and not scenario.twin_of,
        "start_us": item.start_us,
        "end_us": item.end_us,
        "nodes": [node_names[node] for node in nodes if node < len(node_names)],
        "layers": layers,
        "experts": _experts(incident, router, layers, salt),
        "parameters": {
            name: value for name, value in asdict(incident).items() if name not in _BOOKKEEPING
        },
    }


def _layers(incident: Incident, scenario: Scenario) -> list[int]:
    layers = scenario.model.layers
    places = layer_places(getattr(incident, "layers", None), len(layers))
    return [layers[place] for place in places]


def _experts(
    incident: Incident, router: Router, layers: list[int], salt: int
) -> dict[str, list[int]]:
    """Experts concerned, by layer; of a collapse, the survivors."""
    if not incident.effect:
        return {}
    if isinstance(incident, HotExpert):
        return {str(layer): [incident.expert % router.model.experts] for layer in layers}
    if isinstance(incident, ColdExperts | SilentRoutingChange):
        count = incident.experts
    elif isinstance(incident, ExpertCollapse):
        count = incident.survivors
    else:
        return {}
    return {
        str(layer): sorted(int(e) for e in affected_experts(router, layer, count, salt))
        for layer in layers
    }
