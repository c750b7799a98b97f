"""Which state of the router is in force on a node at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.producers.simulator.hashing import seed_from
from moescope.producers.simulator.incidents import (
    ColdExperts,
    ExpertCollapse,
    HotExpert,
    RoutingIncident,
    SilentRoutingChange,
    layer_places,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.producers.simulator.router import Router
    from moescope.producers.simulator.scenario import Planted


class RouterStates:
    """States of one router under a scenario's routing incidents, made when first needed.

    Args:
        healthy: The router as it should be.
        planted: Incidents of the scenario; those with no effect on the router are ignored.
    """

    def __init__(self, healthy: Router, planted: tuple[Planted, ...]) -> None:
        self._healthy = healthy
        self._planted = [
            item
            for item in planted
            if isinstance(item.incident, RoutingIncident) and item.incident.effect
        ]
        self._states: dict[tuple[int, ...], Router] = {}

    def at(self, node: int, time_us: int) -> Router:
        """The router of a node during the second that starts at a time."""
        stages = tuple(_stage(item, node, time_us) for item in self._planted)
        if not any(stages):
            return self._healthy
        if stages not in self._states:
            router = self._healthy
            for index, (item, stage) in enumerate(zip(self._planted, stages, strict=True)):
                incident = item.incident
                if stage and isinstance(incident, RoutingIncident):
                    router = apply_incident(router, incident, stage / incident.stages, index)
            self._states[stages] = router
        return self._states[stages]


def _stage(item: Planted, node: int, time_us: int) -> int:
    """0 while an incident is not active, else 1 to its number of stages."""
    if not item.is_active(node, time_us) or not isinstance(item.incident, RoutingIncident):
        return 0
    passed = (time_us - item.start_us) / (item.end_us - item.start_us)
    return 1 + int(passed * item.incident.stages)


def apply_incident(router: Router, incident: RoutingIncident, degree: float, salt: int) -> Router:
    """The router with an incident that has come to a degree in (0, 1]."""
    model = router.model
    layers = [model.layers[place] for place in layer_places(incident.layers, len(model.layers))]
    if isinstance(incident, SilentRoutingChange):
        return router.with_permutation(
            {
                layer: _exchange(
                    model.experts,
                    affected_experts(router, layer, round(incident.experts * degree), salt),
                )
                for layer in layers
            }
        )
    return router.with_bias(
        {layer: _bias(router, layer, incident, salt) * degree for layer in layers}
    )


def affected_experts(router: Router, layer: int, count: int, salt: int) -> NDArray[np.intp]:
    """The experts of a layer that an incident concerns, drawn from the simulation's seed."""
    generator = np.random.Generator(np.random.PCG64(seed_from(router.seed, layer, 31, salt)))
    count = min(count, router.model.experts)
    return generator.permutation(router.model.experts)[:count].astype(np.intp)


def _bias(router: Router, layer: int, incident: RoutingIncident, salt: int) -> NDArray[np.float64]:
    bias = np.zeros(router.model.experts)
    if isinstance(incident, HotExpert):
        bias[incident.expert % router.model.experts] = incident.bias
    elif isinstance(incident, ColdExperts):
        bias[affected_experts(router, layer, incident.experts, salt)] = incident.bias
    elif isinstance(incident, ExpertCollapse):
        bias[:] = incident.bias
        bias[affected_experts(router, layer, incident.survivors, salt)] = 0.0
    return bias


def _exchange(experts: int, affected: NDArray[np.intp]) -> NDArray[np.intp]:
    """A permutation in which each affected expert takes the next one's place."""
    permutation = np.arange(experts)
    permutation[affected] = np.roll(affected, 1)
    return permutation
