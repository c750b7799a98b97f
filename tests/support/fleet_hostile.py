"""A fleet that reads a topic full of what goes wrong, and what it makes of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

import duckdb
from oracles.windows_plain import PHASE_NAMES
from support.expected import expected_outcome, read
from support.fleet import Fleet
from support.fleet_inputs import deliver, hostile_delivery
from support.fleet_judge import START, assignments_of, closed_windows, topic_records
from support.fleet_load import Machine
from support.fleet_topic import end_offsets
from support.stored import stored_windows

from moescope.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from oracles.windows_plain import Record
    from support.fleet_scenarios import Stage

    from moescope.processors.config import WindowConfig

HOUR_US = 3_600_000_000
RATE = 4.0
MACHINES = (
    Machine("east", 21, rate=RATE),
    Machine("west", 22, nodes=3, training=True, rate=RATE),
    Machine("early", 23, nodes=1, clock_error_us=-HOUR_US, rate=RATE),
    Machine("late", 24, nodes=1, clock_error_us=HOUR_US, rate=RATE),
)
WRONG = tuple(f"{one.name}-" for one in MACHINES if one.clock_error_us)
TASKS_OF_WRONG = tuple(f"{one.name}/" for one in MACHINES if one.clock_error_us)
ACCOUNTS = (
    "rows, accepted_rows, context_rows, padding_rows, recomputed_rows, stale_rows, late_rows, "
    "uncounted_phase_rows, suspicious_pairs"
)
TASK, NODE = 9, 0
"""Places in the keys and in the values of `stored_windows`."""


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """What became of a hostile topic.

    Attributes:
        records: In the topic. unreadable: Those that are no batch. repeated: Those that repeat
            one. reordered: Batches that came after a later one of their node.
        dead: Counted as dead letters. kept: Those that are kept whole.
        duplicates: Marked as such. expected_duplicates: By the plain roll-up.
        wrong_clocks: Nodes marked so. expected_wrong_clocks: Nodes whose clock was an hour off.
        windows: Of nodes with right clocks. lost, twice: Assignments of them.
        formed_twice: Those of them that form again, because a request goes on behind its end.
        accounted_otherwise: Records whose rows the store accounts for otherwise than the plain
            roll-up: accepted, repeated as context, stale, late and so on.
    """

    records: int
    unreadable: int
    repeated: int
    reordered: int
    dead: int
    kept: int
    duplicates: int
    expected_duplicates: int
    wrong_clocks: int
    expected_wrong_clocks: int
    windows: int
    lost: int
    twice: int
    formed_twice: int
    accounted_otherwise: int

    @property
    def is_good(self) -> bool:
        """Whether all of it was seen for what it was, and nothing else suffered."""
        seen = (self.dead, self.duplicates, self.wrong_clocks)
        return seen == (self.unreadable, self.expected_duplicates, self.expected_wrong_clocks) and (
            self.lost, self.twice, self.accounted_otherwise,
        ) == (0, 0, 0)  # fmt: skip


def read_hostile(stage: Stage, seconds: float) -> Hostile:
    """Send a hostile load of so many seconds at once, and let three processors read it.

    Raises:
        FleetError: A part of the fleet ended, or did not come to the end of the topic.
    """
    fleet = Fleet(stage.nursery, stage.folder, stage.bootstrap, stage.prefix)
    fleet.make_topics()
    fleet.start(fleet.owner)
    for worker in fleet.workers:
        fleet.start(worker)
    fleet.wait_for_owner()
    chance = Random(stage.seed)
    machines = [replace(one, seconds=seconds) for one in MACHINES]
    delivery = hostile_delivery(machines, seconds, SystemClock().now_us(), chance)
    for part in delivery:
        deliver(fleet.loaded(), fleet.routing, part, chance)
        fleet.wait_until_stored(end_offsets(stage.bootstrap, fleet.routing), 300)
    fleet.check()
    fleet.stop_all()
    topic = fleet.read_routing()
    records = topic_records(topic)
    places = [one for each in topic.values() for one in each]
    readable = [one for each in records.values() for one in each if one.readable]
    expected = of_right_clocks(closed_windows(records, fleet.config), readable)
    stored = of_right_clocks(stored_windows(fleet.store_file), readable)
    formed_twice = _formed_twice(records, fleet.config)
    off = {
        key: assignments_of(stored.get(key)) - assignments_of(expected.get(key))
        for key in stored.keys() | expected.keys()
    }
    return Hostile(
        records=len(places),
        unreadable=len(places) - len(readable),
        repeated=len(readable) - len({(one.node, one.sequence) for one in readable}),
        reordered=_reordered(records),
        expected_duplicates=sum(
            count - 1 for count in Counter((one.node, one.sequence) for one in readable).values()
        ),
        expected_wrong_clocks=len({one.node for one in readable if one.node.startswith(WRONG)}),
        windows=len(stored),
        lost=sum(max(-each, 0) for each in off.values()),
        twice=sum(max(each, 0) for each in off.values()),
        formed_twice=sum(key[:9] in formed_twice for key in stored),
        accounted_otherwise=_accounted_otherwise(fleet, records),
        **_told(fleet.store_file),
    )


def of_right_clocks(
    windows: Mapping[tuple[Any, ...], tuple[Any, ...]], records: Sequence[Record]
) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Windows that nodes with wrong clocks have no part in."""
    times = [
        row.time
        for one in records
        if not one.node.startswith(WRONG)
        for row in one.rows
        if row.time is not None
    ]
    first, last = min(times) - HOUR_US // 2, max(times) + HOUR_US // 2
    return {
        key: value
        for key, value in windows.items()
        if not value[NODE].startswith(WRONG)
        and not key[TASK].startswith(TASKS_OF_WRONG)
        and (key[0] != "time" or first <= key[START] <= last)
    }


def _formed_twice(
    records: Mapping[str, Sequence[Record]], config: WindowConfig
) -> set[tuple[Any, ...]]:
    """Token windows that form again, because rows of a request follow its end."""
    formed = Counter(
        (
            "token", window.lane.revision, PHASE_NAMES[window.phase], "all", "", window.size,
            window.stride, window.anchor + window.first_position, window.request,
        )
        for each in records.values()
        for window in read(each, config).windows
    )  # fmt: skip
    return {key for key, times in formed.items() if times > 1}


def _accounted_otherwise(fleet: Fleet, records: Mapping[str, Sequence[Record]]) -> int:
    with duckdb.connect(str(fleet.store_file), read_only=True) as connection:
        query = f"SELECT partition, log_offset, {ACCOUNTS} FROM batches"
        rows = connection.execute(query).fetchall()
    stored = {row[:2]: row[2:] for row in rows}
    return sum(
        stored.get((f"{fleet.routing}-{number}", offset)) != account
        for number, each in records.items()
        for offset, account in expected_outcome(each, fleet.config).accounts.items()
    )


def _reordered(records: Mapping[str, Sequence[Record]]) -> int:
    found = 0
    for each in records.values():
        highest: dict[str, int] = {}
        seen: set[tuple[str, int]] = set()
        for one in each:
            if one.readable and (one.node, one.sequence) not in seen:
                found += one.sequence < highest.get(one.node, -1)
                highest[one.node] = max(highest.get(one.node, -1), one.sequence)
                seen.add((one.node, one.sequence))
    return found


def _told(store: Path) -> dict[str, int]:
    with duckdb.connect(str(store), read_only=True) as connection:
        queries = {
            "dead": "SELECT coalesce(sum(records), 0) FROM dead_letter_counts",
            "kept": "SELECT count(*) FROM dead_letters",
            "duplicates": "SELECT count(*) FROM batches WHERE verdict = 'duplicate'",
            "wrong_clocks": "SELECT count(*) FROM producers WHERE state = 'clock_skew'",
        }
        return {
            name: int(connection.execute(query).fetchall()[0][0]) for name, query in queries.items()
        }
