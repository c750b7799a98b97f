"""Runs a scenario over a fleet and writes its batch log, second by second of event time."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from moescope.core.batchlog import (
    LIVE_DOMAIN,
    BatchLogWriter,
    WriterSettings,
    partition_names,
)
from moescope.producers.simulator.engine import NodeEngine
from moescope.producers.simulator.grouping import BatchBuilder
from moescope.producers.simulator.hashing import seed_from
from moescope.producers.simulator.labels import LABELS_FILE, write_labels
from moescope.producers.simulator.model import SimulationError
from moescope.producers.simulator.node_log import NodeLog, SharedState
from moescope.producers.simulator.requests import RequestTable
from moescope.producers.simulator.router import Router
from moescope.producers.simulator.router_states import RouterStates
from moescope.producers.simulator.scenario import SECOND_US, plant
from moescope.producers.simulator.totals import Tally
from moescope.producers.simulator.traffic import Traffic
from moescope.producers.simulator.training import TrainingRank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from moescope.producers.simulator.model import ModelSpec
    from moescope.producers.simulator.scenario import Scenario
    from moescope.producers.simulator.totals import SimulationTotals

DEFAULT_START_US = 1_798_761_600 * SECOND_US
"""2027-01-01 00:00:00 UTC: a simulation's event time does not depend on when it runs."""


def simulate(
    scenario: Scenario,
    log_root: Path,
    *,
    seed: int = 0,
    duration_s: int = 600,
    nodes: int = 4,
    model: ModelSpec | None = None,
    start_us: int = DEFAULT_START_US,
    node_prefix: str = "sim",
    domain: str = LIVE_DOMAIN,
    request_prefix: str = "",
    byte_cap: int | None = None,
    progress: Callable[[int, SimulationTotals], None] | None = None,
) -> SimulationTotals:
    """Simulate a fleet and write one sealed partition per node, and the labels beside them.

    The same arguments give byte-identical partitions. Append times are event time plus the
    time that encoding and shipping take, so that nothing is late.

    Args:
        scenario: What happens.
        log_root: Batch log to write to; the nodes' partitions must not exist.
        seed: Of everything random.
        duration_s: Event time to simulate, in seconds.
        nodes: Size of the fleet.
        model: Overrides the scenario's model.
        start_us: Event time of the beginning, a whole second.
        node_prefix: Nodes are called `<prefix>-000`, `<prefix>-001`, …
        domain: Watermark domain of the partitions; two simulations whose event times overlap
            need one each.
        request_prefix: Stands in front of the names of requests and tasks of users: two runs in
            one domain must not use a name twice.
        byte_cap: Most bytes of a node's log; None for no cap.
        progress: Called after each simulated second with the seconds done and totals so far.

    Raises:
        SimulationError: An argument cannot be used, or a partition exists already.
        BatchLogError: The log cannot be written.
    """
    _check_arguments(duration_s, nodes, start_us)
    scenario = scenario if model is None else replace(scenario, model=model)
    names = tuple(f"{node_prefix}-{node:03d}" for node in range(nodes))
    taken = sorted(set(names) & set(partition_names(log_root)))
    if taken:
        raise SimulationError(
            f"The batch log {log_root} already has the partition {taken[0]!r}.",
            next_step="Simulate into an empty folder, or choose another node prefix.",
        )
    planted = plant(scenario, start_us, duration_s)
    table, tally = RequestTable(), Tally()
    shared = SharedState(scenario, planted, table, tally)
    router = Router(
        model=scenario.model,
        spec=scenario.router,
        seed=seed_from(seed, 1),
        with_entropy=scenario.record_entropy,
    )
    states = RouterStates(router, planted)
    with ExitStack() as closing:
        logs = []
        for node, name in enumerate(names):
            writer = BatchLogWriter(
                log_root,
                name,
                domain=domain,
                settings=WriterSettings(durability="none", byte_cap=byte_cap),
            )
            closing.callback(writer.close)
            builder = BatchBuilder(scenario.model, table, name, seed_from(seed, 2, node))
            logs.append(NodeLog(node, shared, builder, writer))

        def totals(seconds: int) -> SimulationTotals:
            return tally.totals(
                layers=len(scenario.model.layers),
                top_k=scenario.model.top_k,
                requests=len(table),
                seconds=seconds,
                nodes=names,
            )

        fleet = _Fleet(
            shared, logs, states, seed=seed, start_us=start_us, request_prefix=request_prefix
        )
        for second in range(duration_s):
            fleet.advance(start_us + second * SECOND_US)
            if progress is not None:
                progress(second + 1, totals(second + 1))
        for log in logs:
            log.close()
    write_labels(
        log_root / LABELS_FILE,
        scenario,
        planted,
        node_names=names,
        router=router,
        table=table,
        seed=seed,
        span_us=(start_us, start_us + duration_s * SECOND_US),
    )
    return totals(duration_s)


class _Fleet:
    """Nodes and users, advanced together."""

    def __init__(
        self,
        shared: SharedState,
        logs: list[NodeLog],
        states: RouterStates,
        *,
        seed: int,
        start_us: int,
        request_prefix: str,
    ) -> None:
        scenario, table = shared.scenario, shared.table
        self._table = table
        self._logs = logs
        self._states = states
        self._traffic: Traffic | None = None
        self._engines: list[NodeEngine] = []
        self._ranks: list[TrainingRank] = []
        if scenario.training is not None:
            self._ranks = [
                TrainingRank(scenario.training, table, rank, start_us, seed)
                for rank in range(len(logs))
            ]
        else:
            self._traffic = Traffic(
                scenario.traffic, shared.planted, len(logs), seed, request_prefix
            )
            self._engines = [NodeEngine(scenario.engine, table, start_us) for _ in logs]

    def advance(self, second_us: int) -> None:
        """Simulate and write the second that starts at a time, on every node."""
        if self._traffic is not None:
            for arrival in self._traffic.second(second_us):
                request = self._table.add(arrival.plan)
                self._engines[arrival.node].enqueue(request, arrival.time_us)
        sources: Sequence[TrainingRank | NodeEngine] = self._ranks or self._engines
        for node, (source, log) in enumerate(zip(sources, self._logs, strict=True)):
            rows, finished = source.advance(second_us + SECOND_US)
            log.second(rows, self._states.at(node, second_us), second_us)
            log.forget([request for request, _ in finished])
            for request, time_us in finished:
                if self._traffic is not None:
                    self._traffic.answered(self._table.plans[request], node, time_us)


def _check_arguments(duration_s: int, nodes: int, start_us: int) -> None:
    if duration_s < 1 or nodes < 1:
        raise SimulationError(
            f"Cannot simulate {nodes} nodes for {duration_s} s.", next_step="Use at least 1."
        )
    if start_us < 0 or start_us % SECOND_US:
        raise SimulationError(
            f"A simulation cannot start at {start_us} µs.", next_step="Use a whole second."
        )
