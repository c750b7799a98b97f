"""A whole fleet over a real broker, small: what `make faults` does in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.fleet import Fleet, log_ends
from support.fleet_engine import EnginePlan
from support.fleet_faults import Fault
from support.fleet_full_disks import fill_disks
from support.fleet_hostile import read_hostile
from support.fleet_judge import TOKENS, closed_windows, logged_identities, topic_records
from support.fleet_load import Machine
from support.fleet_outage import OutagePlan, run_outage
from support.fleet_processes import Nursery, wait_for
from support.fleet_scenarios import Stage, sabotage
from support.fleet_topic import identities, identity_of
from support.stored import stored_windows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.broker_choice import Broker, SharedBroker
    from support.fleet_topic import Identity

FEW = {
    Fault.PROCESSOR_KILLED: 2,
    Fault.PROCESSOR_PAUSED: 1,
    Fault.REBALANCE: 2,
    Fault.AGENT_KILLED: 1,
    Fault.OWNER_KILLED: 1,
    Fault.BROKER_KILLED: 1,
}
TOO_LARGE = 560
"""Bytes of a record; batches of several rows have more."""
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
    assert found.ring_rows is not None
    assert found.ring_rows.rows
    assert found.is_good, (found.verdict, found.ring_rows, found.differences)


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
    assert found.table.empty
    # A window of a minute is there, too, where a minute of the clock began meanwhile.
    assert {one.size_s for one in found.table.holes if one.short} - {60} == {1, 5}
    assert found.faults == [], found


def test_a_late_topic_and_records_over_its_limit(
    nursery: Nursery, tmp_path: Path, kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """All wait for topics; what is too large lies beside the log, and all else is stored."""
    machines = (Machine("east", 31), Machine("west", 32))
    fleet = Fleet(
        nursery, tmp_path / "fleet", kafka_broker.bootstrap, topic_prefix, machines, processors=0
    )
    for member in (fleet.owner, *fleet.agents):
        fleet.start(member)
    fleet.start_load(120)
    wait_for("a load", lambda: all(map(log_ends, fleet.log_roots())), 60)
    fleet.make_topics(largest_routing=TOO_LARGE)
    fleet.wait_for_owner()
    wait_for("batches over the limit", lambda: len(_set_aside(fleet)) > 2, 60)
    fleet.end_load()
    fleet.stop_all()
    topic = fleet.read_routing()
    shipped = identities(place for places in topic.values() for place in places).keys()
    aside = _set_aside(fleet)
    assert logged_identities(fleet.log_roots()) == shipped | aside
    assert not shipped & aside
    stored, expected = (
        stored_windows(fleet.store_file),
        closed_windows(topic_records(topic), fleet.config),
    )
    assert {key: row[TOKENS] for key, row in stored.items()} == {
        key: row[TOKENS] for key, row in expected.items()
    }


def _set_aside(fleet: Fleet) -> set[Identity]:
    """Batches that agents keep because no broker takes them."""
    return {
        identity
        for root in fleet.log_roots()
        for file in root.rglob("undeliverable/**/*.batch")
        if (identity := identity_of(file.read_bytes())) is not None
    }


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
