"""Machines whose clocks are an hour off, with agents of their own: marked, and nothing is lost."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import pytest
from support.fleet import Fleet
from support.fleet_hostile import of_right_clocks
from support.fleet_judge import TOKENS, closed_windows, logged_identities, topic_records
from support.fleet_load import Machine
from support.fleet_processes import Nursery
from support.fleet_topic import identities
from support.stored import stored_windows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.broker_choice import SharedBroker

HOUR_US = 3_600_000_000
MACHINES = (
    Machine("right", 61),
    Machine("early", 62, nodes=1, clock_error_us=-HOUR_US),
    Machine("late", 63, nodes=1, clock_error_us=HOUR_US),
)
WRONG = {"early-node-0", "late-node-0"}
LOAD_S = 3.0
KIND = 0
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Makes processes, of which none is left."""
    with Nursery(tmp_path / "logs") as made:
        yield made


def test_agents_with_wrong_clocks_are_marked_and_lose_nothing(
    nursery: Nursery, tmp_path: Path, kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """An hour early and an hour late: windows as the plain roll-up makes them, nodes marked."""
    fleet = Fleet(
        nursery, tmp_path / "fleet", kafka_broker.bootstrap, topic_prefix, MACHINES, processors=0
    )
    fleet.make_topics()
    for member in (fleet.owner, *fleet.agents):
        fleet.start(member)
    fleet.start_load(LOAD_S + 60)
    fleet.wait_for_owner()
    time.sleep(LOAD_S)
    fleet.end_load()
    fleet.check()
    fleet.stop_all()
    topic = fleet.read_routing()
    records = topic_records(topic)
    readable = [one for each in records.values() for one in each if one.readable]
    stored = of_right_clocks(stored_windows(fleet.store_file), readable)
    expected = of_right_clocks(closed_windows(records, fleet.config), readable)
    assert {key[KIND] for key in stored} == {"time", "token", "task"}
    assert {key: row[TOKENS] for key, row in stored.items()} == {
        key: row[TOKENS] for key, row in expected.items()
    }
    shipped = identities(place for places in topic.values() for place in places)
    assert shipped.keys() == logged_identities(fleet.log_roots())
    rows: Counter[str] = Counter()
    for one in readable:
        rows[one.node] += len(one.rows)
    with duckdb.connect(str(fleet.store_file), read_only=True) as store:
        states = dict(store.execute("SELECT node, state FROM producers").fetchall())
        found = store.execute(
            "SELECT node, sum(rows), avg(list_contains(reasons, 'clock_skew')::INT) "
            "FROM batches GROUP BY node"
        ).fetchall()
    counted = {node: number for node, number, _ in found}
    marked = {node: share for node, _, share in found}
    assert counted == rows
    assert states == {node: "clock_skew" if node in WRONG else "active" for node in rows}
    assert marked == {node: float(node in WRONG) for node in rows}
