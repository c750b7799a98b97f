"""A whole fleet over a real broker, small: what `make faults` does in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.fleet_engine import EnginePlan
from support.fleet_faults import Fault
from support.fleet_full_disks import fill_disks
from support.fleet_hostile import read_hostile
from support.fleet_outage import OutagePlan, run_outage
from support.fleet_processes import Nursery
from support.fleet_scenarios import Stage, sabotage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.broker_choice import Broker, SharedBroker

FEW = {
    Fault.PROCESSOR_KILLED: 2,
    Fault.PROCESSOR_PAUSED: 1,
    Fault.REBALANCE: 2,
    Fault.AGENT_KILLED: 1,
    Fault.OWNER_KILLED: 1,
    Fault.BROKER_KILLED: 1,
}
# Half a minute each on a machine that has nothing else to do.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Makes processes, of which none is left."""
    with Nursery(tmp_path / "logs") as made:
        yield made


def _stage(
    nursery: Nursery, tmp_path: Path, broker: Broker | SharedBroker, prefix: str, own: Broker | None
) -> Stage:
    return Stage(
        nursery=nursery,
        folder=tmp_path / "fleet",
        broker=own,
        bootstrap=broker.bootstrap,
        prefix=prefix,
        seed=7,
        told=print,
    )


def test_faults_lose_nothing_and_count_nothing_twice(
    nursery: Nursery, tmp_path: Path, own_broker: Broker, topic_prefix: str
) -> None:
    """Every part killed under load, processors paused and rebalanced: tables as if left alone."""
    stage = _stage(nursery, tmp_path, own_broker, topic_prefix, own_broker)
    found = sabotage(stage, FEW)
    assert {fault: len(each) for fault, each in found.recoveries.seconds.items()} == FEW
    assert found.verdict.assignments
    assert found.verdict.is_good, (found.verdict, found.differences)


def test_an_outage_drops_what_is_over_the_cap_and_counts_it(
    nursery: Nursery, tmp_path: Path, own_broker: Broker, topic_prefix: str
) -> None:
    """Broker frozen, then gone: caps hold, and every batch is delivered or counted as dropped."""
    plan = OutagePlan(
        seconds=9,
        before=2,
        after=1,
        byte_cap=1 << 20,
        engine=EnginePlan(steps_per_second=100, length=100, ring_bytes=16 << 20),
    )
    found = run_outage(nursery, tmp_path / "fleet", own_broker, topic_prefix, plan)
    assert found.dropped
    assert found.holes
    assert found.faults == [], found


def test_full_disks_delay_rows_and_lose_none(
    nursery: Nursery, tmp_path: Path, kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """While no disk has room rows wait, first at the node, then before the store."""
    found = fill_disks(_stage(nursery, tmp_path, kafka_broker, topic_prefix, None), 3)
    assert found.rows
    assert found.is_good, found


def test_a_hostile_topic_is_seen_for_what_it_is(
    nursery: Nursery, tmp_path: Path, kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """Repeated, reordered and spoilt records and wrong clocks: counted, and nobody else suffers."""
    found = read_hostile(_stage(nursery, tmp_path, kafka_broker, topic_prefix, None), 20)
    assert min(found.reordered, found.unreadable, found.expected_duplicates, found.windows)
    assert found.is_good, found
