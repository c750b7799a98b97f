"""A data-parallel rank of a training run, in the place of an inference engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.vocabulary import Phase
from moescope.producers.simulator.engine import EngineRows
from moescope.producers.simulator.hashing import seed_from
from moescope.producers.simulator.model import DOMAINS
from moescope.producers.simulator.requests import RequestPlan

if TYPE_CHECKING:
    from moescope.producers.simulator.requests import RequestTable
    from moescope.producers.simulator.scenario import TrainingSpec


class TrainingRank:
    """Computes every token of its sequences at each optimizer step.

    Args:
        spec: Steps and sequences.
        table: All sequences of the run.
        rank: Of this node.
        start_us: Event time of step 0.
        seed: Same seed, same data.
    """

    def __init__(
        self, spec: TrainingSpec, table: RequestTable, rank: int, start_us: int, seed: int
    ) -> None:
        self._spec = spec
        self._table = table
        self._rank = rank
        self._start_us = start_us
        self._seed = seed
        self._step = 0

    def advance(self, until_us: int) -> tuple[EngineRows, list[tuple[int, int]]]:
        """Compute the steps that start before a time; nothing is ever answered."""
        spec = self._spec
        first = self._step
        while self._start_us + self._step * spec.step_us < until_us:
            self._step += 1
        steps = np.arange(first, self._step)
        indices = [
            self._table.add(self._sequence(int(step), number))
            for step in steps
            for number in range(spec.sequences)
        ]
        per_step = spec.sequences * spec.tokens
        step = np.repeat(steps, per_step)
        rows = EngineRows(
            request=np.repeat(np.array(indices, np.intp), spec.tokens),
            position=np.tile(np.arange(spec.tokens), len(indices)),
            phase=np.full(len(step), Phase.TRAIN, np.uint8),
            event_time_us=self._start_us + step * spec.step_us,
            pass_id=step,
            step=step,
        )
        return rows, []

    def _sequence(self, step: int, number: int) -> RequestPlan:
        spec = self._spec
        seed = seed_from(self._seed, 41, self._rank, step, number)
        ordered = step // spec.sorted_run if spec.sorted_run else seed >> 8
        domain = ordered % len(DOMAINS)
        name = f"sample-{step:07d}-{self._rank:03d}-{number:03d}"
        return RequestPlan(
            id=name,
            task=name,
            scene=DOMAINS[domain].name,
            prompt_tokens=spec.tokens,
            output_tokens=1,
            content_seed=seed,
            domain=domain,
            second_share=0.0,
            first_phase=Phase.TRAIN,
        )
