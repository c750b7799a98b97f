"""Arrivals: new conversations, their further turns, and what traffic incidents make of them."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.producers.simulator.hashing import seed_from
from moescope.producers.simulator.incidents import (
    FewShot,
    Incident,
    JsonPulse,
    LongGreedy,
    SharedPrefix,
    SingleDomain,
)
from moescope.producers.simulator.model import DOMAIN_INDEX
from moescope.producers.simulator.requests import RequestPlan
from moescope.producers.simulator.scenario import SECOND_US, Planted, Scene, TrafficSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAFFIC_INCIDENTS = (SharedPrefix, JsonPulse, SingleDomain, LongGreedy, FewShot)


class Arrival(NamedTuple):
    """A request on its way to a node."""

    time_us: int
    node: int
    plan: RequestPlan


class Traffic:
    """The users of a fleet.

    Args:
        spec: How they behave.
        planted: Incidents of the scenario.
        nodes: Size of the fleet.
        seed: Same seed, same users.
        prefix: Stands in front of the names of requests and tasks.
    """

    def __init__(
        self,
        spec: TrafficSpec,
        planted: tuple[Planted, ...],
        nodes: int,
        seed: int,
        prefix: str = "",
    ) -> None:
        self._spec = spec
        self._planted = [item for item in planted if isinstance(item.incident, TRAFFIC_INCIDENTS)]
        self._nodes = nodes
        self._seed = seed
        self._prefix = prefix
        self._random = np.random.Generator(np.random.PCG64(seed_from(seed, 21)))
        self._further: list[tuple[int, int, Arrival]] = []
        self._tasks = 0
        self._requests = 0
        shares = np.array([scene.share for scene in spec.scenes])
        self._scene_limits = np.cumsum(shares / shares.sum())

    def second(self, start_us: int) -> list[Arrival]:
        """Arrivals within the second that starts at a time, in order of time."""
        arrivals = [arrival for node in range(self._nodes) for arrival in self._new(node, start_us)]
        while self._further and self._further[0][0] < start_us + SECOND_US:
            arrivals.append(heapq.heappop(self._further)[2])
        arrivals.sort(key=lambda arrival: arrival.time_us)
        return arrivals

    def answered(self, plan: RequestPlan, node: int, time_us: int) -> None:
        """A request finished: its user may come back."""
        if plan.turns_left == 0:
            return
        random = np.random.Generator(np.random.PCG64(seed_from(plan.content_seed, plan.turns_left)))
        think_us = int(random.exponential(self._spec.think_s) * SECOND_US)
        stays = random.random() < self._spec.sticky
        target = node if stays else int(random.integers(self._nodes))
        history = plan.prompt_tokens + plan.output_tokens
        self._requests += 1
        further = replace(
            plan,
            id=f"{self._prefix}req-{self._requests:08d}",
            prompt_tokens=min(history + self._prompt(random) // 2 + 1, 4 * self._spec.prompt_max),
            output_tokens=self._output(random),
            turns_left=plan.turns_left - 1,
        )
        arrival = Arrival(time_us + SECOND_US + think_us, target, further)
        heapq.heappush(self._further, (arrival.time_us, self._requests, arrival))

    def _new(self, node: int, start_us: int) -> Iterator[Arrival]:
        spec = self._spec
        bursting = self._random.random() < spec.burst_share
        calm = 1.0 / (1.0 + spec.burst_share * (spec.burst_factor - 1.0))
        rate = spec.tasks_per_second * calm * (spec.burst_factor if bursting else 1.0)
        offsets = np.sort(self._random.integers(0, SECOND_US, self._random.poisson(rate)))
        times = [start_us + int(offset) for offset in offsets]
        active = [
            (index, item)
            for index, item in enumerate(self._planted)
            if item.is_active(node, start_us)
        ]
        for _, item in active:
            incident = item.incident
            if isinstance(incident, SharedPrefix) and incident.group:
                due = (start_us - item.start_us) // SECOND_US % incident.period_s == 0
                times = [start_us] * incident.group if due else []
        for time_us in times:
            plan = self._plan()
            for index, item in active:
                draw = seed_from(plan.content_seed, index) / 2**64
                shaped = shape(plan, item.incident, draw, self._prefix_seed(index, item, time_us))
                if shaped is not plan:
                    plan = replace(shaped, incidents=(*plan.incidents, item.incident.name))
            yield Arrival(time_us, node, plan)

    def _prefix_seed(self, index: int, item: Planted, time_us: int) -> int:
        incident = item.incident
        fresh = isinstance(incident, SharedPrefix) and incident.fresh
        return seed_from(self._seed, 22, index, time_us // SECOND_US if fresh else 0)

    def _plan(self) -> RequestPlan:
        spec, random = self._spec, self._random
        self._tasks += 1
        self._requests += 1
        scene = self._scene()
        turns = min(int(random.geometric(1.0 / spec.turns_mean)), spec.turns_max)
        return RequestPlan(
            id=f"{self._prefix}req-{self._requests:08d}",
            task=f"{self._prefix}task-{self._tasks:07d}",
            scene=scene.name,
            prompt_tokens=self._prompt(random),
            output_tokens=self._output(random),
            content_seed=int(random.integers(2**63)),
            domain=DOMAIN_INDEX[scene.domain],
            second_domain=DOMAIN_INDEX[scene.second_domain],
            second_share=scene.second_share,
            turns_left=turns - 1,
        )

    def _scene(self) -> Scene:
        place = int(np.searchsorted(self._scene_limits, self._random.random(), side="right"))
        return self._spec.scenes[min(place, len(self._spec.scenes) - 1)]

    def _prompt(self, random: np.random.Generator) -> int:
        spec = self._spec
        return _length(random, spec.prompt_median, spec.prompt_sigma, spec.prompt_max)

    def _output(self, random: np.random.Generator) -> int:
        spec = self._spec
        return _length(random, spec.output_median, spec.output_sigma, spec.output_max)


def _length(random: np.random.Generator, median: float, sigma: float, longest: int) -> int:
    drawn = round(float(random.lognormal(math.log(median), sigma)))
    return max(1, min(drawn, longest))


def shape(plan: RequestPlan, incident: Incident, draw: float, prefix_seed: int) -> RequestPlan:
    """What an incident makes of a new request; the same plan if it leaves it alone.

    Args:
        plan: The request as it would be.
        incident: An active incident.
        draw: Uniform in [0, 1): decides whether a share concerns this request.
        prefix_seed: Seed of the shared beginning, where there is one.
    """
    match incident:
        case SharedPrefix(tokens=tokens, domain=domain, share=share) if draw < share:
            shaped = _behind_prefix(plan, tokens, domain, prefix_seed)
        case FewShot(share=share) if draw < share:
            shaped = _with_examples(replace(plan, turns_left=0), incident, prefix_seed)
        case JsonPulse(output_tokens=tokens):
            shaped = replace(
                plan,
                output_tokens=tokens,
                turns_left=0,
                pulse_half_period=incident.half_period if incident.effect else 0,
                pulse_domain=DOMAIN_INDEX["json"],
            )
        case LongGreedy(output_tokens=tokens):
            shaped = replace(
                plan,
                output_tokens=tokens,
                turns_left=0,
                loop_start=plan.prompt_tokens + incident.loop_after,
                loop_period=incident.loop_period if incident.effect else 0,
            )
        case SingleDomain(effect=True, share=share) if draw < share:
            domain_index = DOMAIN_INDEX[incident.domain]
            shaped = replace(plan, scene=incident.scene, domain=domain_index, second_share=0.0)
        case _:
            shaped = plan
    return shaped


def _with_examples(question: RequestPlan, incident: FewShot, prefix_seed: int) -> RequestPlan:
    if not incident.effect:
        return question
    return replace(
        _behind_prefix(question, incident.tokens, incident.domain, prefix_seed),
        pull_seed=prefix_seed,
        forced_pull=incident.pull,
    )


def _behind_prefix(plan: RequestPlan, tokens: int, domain: str, seed: int) -> RequestPlan:
    return replace(
        plan,
        prompt_tokens=plan.prompt_tokens + tokens,
        prefix_tokens=tokens,
        prefix_seed=seed,
        prefix_domain=DOMAIN_INDEX[domain],
    )
