"""The fault scenarios, each with a broker, topics and a fleet of its own."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import psutil
from support.fleet import Fleet
from support.fleet_faults import Fault, Saboteur
from support.fleet_judge import judge_store
from support.fleet_load import USUAL_PACE, Machine
from support.fleet_marks import difference_of
from support.fleet_ring import RingMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from support.broker_choice import Broker
    from support.fleet_faults import Recoveries
    from support.fleet_judge import Verdict
    from support.fleet_processes import Nursery
    from support.fleet_ring import RingRows

LOAD_S, LOAD_S_PER_FAULT = 60.0, 15.0
"""A load is planned that long; it ends with the last fault."""
_machine = partial(Machine, layers=4, experts=32, top_k=8)
MACHINES = (
    _machine("east", 11, repeat=9),
    _machine("west", 12, nodes=3, training=True),
    _machine("valley", 13, nodes=3),
)
"""By their names, their nodes have records in each of six partitions; two are shared."""


class Stage(NamedTuple):
    """Where a scenario takes place.

    Attributes:
        broker: A native broker that may be killed, or an address with nothing to kill.
        bootstrap: Its address.
        prefix: Of topics and names.
        seed: Decides all that is left to chance.
        told: Gets a line now and then.
        pace: Seconds of event time that go by in a second of a load.
    """

    nursery: Nursery
    folder: Path
    broker: Broker | None
    bootstrap: str
    prefix: str
    seed: int
    told: Callable[[str], None]
    pace: float = USUAL_PACE


class Load(NamedTuple):
    """What a fleet had to carry.

    Attributes:
        seconds: That it lasted.
        nodes: That logged. partitions: That had records.
        idle: Share of all cores that was left.
    """

    seconds: float
    nodes: int
    partitions: int
    idle: float


@dataclass(frozen=True)
class Sabotaged:
    """What a fleet came to.

    Attributes:
        recoveries: Seconds, by fault.
        verdict: On what is stored.
        differences: From the tables of one process alone that nothing explains, some of them.
        seconds: That the whole took.
        load: How much was to be carried.
        ring_rows: Of the machine whose rows go through a ring; None: agents were not killed.
    """

    recoveries: Recoveries
    verdict: Verdict
    differences: tuple[str, ...]
    seconds: float
    load: Load
    ring_rows: RingRows | None

    @property
    def is_good(self) -> bool:
        """Whether everything is as promised."""
        return self.verdict.is_good and (self.ring_rows is None or self.ring_rows.is_good)


def sabotage(
    stage: Stage,
    faults: Mapping[Fault, int],
    *,
    programs: float = 0.0,
    warm_up_s: float = 1.0,
) -> Sabotaged:
    """Run a fleet under load, do things to it, let it end, and judge what it stored.

    Args:
        stage: Where.
        faults: What, and how often.
        programs: Share of restarts with the real command.
        warm_up_s: Load before the first fault.

    Raises:
        FleetError: Something did not recover or end as it should.
    """
    begin = time.monotonic()
    machines = [replace(one, pace=stage.pace) for one in MACHINES]
    fleet = Fleet(stage.nursery, stage.folder, stage.bootstrap, stage.prefix, machines)
    fleet.start_all(LOAD_S + LOAD_S_PER_FAULT * sum(faults.values()))
    load_begin, idle_begin = time.monotonic(), psutil.cpu_times().idle
    time.sleep(warm_up_s)
    rings = None
    if Fault.AGENT_KILLED in faults:
        rings = RingMachine(
            stage.nursery, stage.folder / "ringed", stage.bootstrap, f"{stage.prefix}-ringed"
        )
        rings.start()
    chance = Random(stage.seed)
    saboteur = Saboteur(fleet, stage.broker, chance, programs, rings)
    saboteur.run(faults, stage.told)
    ring_rows = None if rings is None else rings.end()
    load_s, idle_s = time.monotonic() - load_begin, psutil.cpu_times().idle - idle_begin
    fleet.end_load()
    fleet.stop_all()
    topic = fleet.read_routing()
    alone = fleet.store_alone()
    verdict = judge_store(fleet.store_file, alone, topic, fleet.log_roots(), fleet.config)
    differences = difference_of(fleet.store_file, alone).unexplained[:20]
    load = Load(
        seconds=load_s,
        nodes=len({one.key for places in topic.values() for one in places}),
        partitions=sum(bool(places) for places in topic.values()),
        idle=idle_s / load_s / (os.cpu_count() or 1),
    )
    seconds = time.monotonic() - begin
    return Sabotaged(saboteur.recoveries, verdict, differences, seconds, load, ring_rows)
