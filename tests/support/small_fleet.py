"""A small simulated fleet for tests: quick to draw, quick to read back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from support.decoded_logs import LoggedBatch, log_of

from moescope.core.vocabulary import RowFlag
from moescope.producers.simulator import (
    ModelSpec,
    RouterSpec,
    Scenario,
    SimulationTotals,
    TrafficSpec,
    simulate,
)

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

SMALL_MODEL = ModelSpec(experts=16, top_k=2, layers=(1, 3, 4))
SMALL_ROUTER = RouterSpec(pool_tokens=512)
SMALL_TRAFFIC = TrafficSpec(
    tasks_per_second=1.0,
    prompt_median=40,
    prompt_max=200,
    output_median=20,
    output_max=80,
    think_s=1.0,
)


class Row(NamedTuple):
    """One token of a decoded log."""

    request: str
    position: int
    phase: int
    flags: int
    time_us: int
    ids: NDArray[np.uint16]


def simulate_small(
    scenario: Scenario,
    root: Path,
    *,
    seed: int = 0,
    duration_s: int = 12,
    nodes: int = 1,
    traffic: TrafficSpec = SMALL_TRAFFIC,
) -> tuple[SimulationTotals, dict[str, list[LoggedBatch]]]:
    """Simulate a scenario with a small model, and read the log back."""
    small = replace(scenario, model=SMALL_MODEL, router=SMALL_ROUTER, traffic=traffic)
    totals = simulate(small, root, seed=seed, duration_s=duration_s, nodes=nodes)
    return totals, log_of(root)


def rows_of(batches: list[LoggedBatch]) -> list[Row]:
    """All rows of batches, context rows included, in log order."""
    rows: list[Row] = []
    for batch, _ in batches:
        tokens, routes = batch.tokens, batch.routes
        if tokens is None or routes is None or tokens.event_time_us is None:
            continue
        columns = zip(
            tokens.request.tolist(),
            tokens.position.tolist(),
            tokens.phase.tolist(),
            tokens.flags.tolist(),
            tokens.event_time_us.tolist(),
            routes.expert_ids,
            strict=True,
        )
        rows += [Row(batch.requests.ids[r], *rest) for r, *rest in columns]
    return rows


def counted_rows(batches: list[LoggedBatch]) -> list[Row]:
    """Rows that are neither context nor padding."""
    uncounted = RowFlag.CONTEXT | RowFlag.PADDING
    return [row for row in rows_of(batches) if not row.flags & uncounted]
