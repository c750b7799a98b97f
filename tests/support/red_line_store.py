"""Red lines on tables of their own: exceedances as text, committed in any cuts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from moescope.core.clock import ManualClock
from moescope.core.emission import CommitFacts, LaneKey
from moescope.core.exceedance import SLOT_US, Exceedance, ExceedanceKey
from moescope.core.tables import TABLE_BY_NAME
from moescope.core.thresholds import (
    Activation,
    LineKey,
    LineSource,
    MetricLines,
    PagingRule,
    Standing,
    ThresholdBook,
    ThresholdScope,
    ThresholdVersion,
)
from moescope.jobs.alerts import RedLines
from moescope.storage.columns import insert, records
from moescope.storage.exceedance_rows import merge_exceedances
from moescope.storage.lanes import lane_id
from moescope.storage.migrations.m0001_first_tables import create_statement
from moescope.storage.transaction import transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LANE = LaneKey("live", "m", "r", "model", "full", 1.0, 8, 2, (0, 1))
OTHER_LANE = LaneKey("live", "other", "r", "model", "full", 1.0, 8, 2, (0, 1))
START_US = 1_767_225_600_000_000
"""2026-01-01, a whole number of slots."""
TABLES = (
    "lanes", "exceedances", "alerts", "alert_events", "outbox", "red_line_progress", "removed_rows",
)  # fmt: skip
VALUES = {"o": 3.0, ".": -2.0, "?": -math.inf}


def slot_us(index: int) -> int:
    """Start of a slot by number."""
    return START_US + index * SLOT_US


def final_us(index: int) -> int:
    """How far a domain has to be for a slot to be judged."""
    return slot_us(index + 1) + 2_000_000


def rule(
    *, line: float = 1.0, needed: int = 2, of: int = 3, family: str = "load", scope: str = "all"
) -> PagingRule:
    """A rule for 128-token decode windows."""
    return PagingRule(
        phase="decode",
        kind="token",
        size=128,
        stride=128,
        scope_kind=scope,
        family=family,
        line=line,
        needed=needed,
        of=of,
        expected_per_day=0.0,
        bound_per_day=1.0,
        only_bound=True,
    )


def version(name: str, *rules: PagingRule, lane: LaneKey = LANE) -> ThresholdVersion:
    """A version with paging rules, and a line of one metric."""
    layers = len(lane.layers)
    lines = MetricLines(
        warn_low=np.full(layers, np.nan),
        warn_high=np.full(layers, 0.2),
        red_low=np.full(layers, np.nan),
        red_high=np.full(layers, 0.4),
        centre=np.full(layers, 0.1),
        spread=np.full(layers, 0.05),
        standing=Standing.FIRM,
        source=LineSource.OWN,
        units=2_000,
    )
    return ThresholdVersion(
        version=name,
        scope=ThresholdScope.of(lane),
        layers=lane.layers,
        experts=lane.experts,
        top_k=lane.top_k,
        lines={LineKey("decode", "token", 128, 128, "all", "", ""): {"hot_load_share": lines}},
        references={},
        paging=rules,
    )


def book_of(
    *versions: ThresholdVersion, activations: Sequence[Activation] | None = None
) -> ThresholdBook:
    """A book in which the first version of each scope is always in force, unless told."""
    book = ThresholdBook()
    listed: dict[ThresholdScope, tuple[Activation, ...]] = {}
    for each in versions:
        first = Activation(0, each.version)
        listed.setdefault(each.scope, tuple(activations or (first,)))
    book.replace({each.version: each for each in versions}, listed)
    return book


@dataclass(frozen=True)
class Arrival:
    """An exceedance of a slot, and how far its domain is when it arrives."""

    reached_us: int
    key: ExceedanceKey
    value: Exceedance


def exceedance(value: float, *, start: int = 0, layer: int = 1) -> Exceedance:
    """Four judged windows that agree: fewer red token windows than three never page."""
    red, mixed = 4 * (value > 0), 4 * (value == -math.inf)
    return Exceedance(value, "hot_load_share", layer, start, "req-1", 4, red, mixed)


def key(index: int, **fields: Any) -> ExceedanceKey:
    """A slot of load in 128-token decode windows, judged by `t-1`."""
    base = ExceedanceKey(
        LANE, "decode", "token", 128, 128, "all", "", "load", slot_us(index), "t-1"
    )
    return base._replace(**fields)


def arrivals(
    slots: str,
    values: Mapping[str, float] = VALUES,
    **fields: Any,
) -> list[Arrival]:
    """What arrives of a series: per symbol a slot, each a second after its end."""
    return [
        Arrival(
            slot_us(index + 1) + 1_000_000,
            key(index, **fields),
            exceedance(values[symbol], start=index),
        )
        for index, symbol in enumerate(slots)
        if symbol in values
    ]


@dataclass
class RedLineStore:
    """Tables in a database, and red lines that take part in each commit."""

    book: ThresholdBook
    connection: duckdb.DuckDBPyConnection = field(default_factory=duckdb.connect)
    receivers: Sequence[str] = ("log",)
    no_data_after_us: int = 300_000_000
    historic: Any = None
    commit_id: int = 0

    def __post_init__(self) -> None:
        """Create the tables, and the hook."""
        self.clock = ManualClock(START_US)
        for name in TABLES:
            self.connection.execute(create_statement(TABLE_BY_NAME[name]))
        self.restart()

    def restart(self) -> None:
        """Red lines of a new process."""
        options = {} if self.historic is None else {"historic": self.historic}
        self.hook = RedLines(
            self.book,
            self.clock,
            self.receivers,
            no_data_after_us=self.no_data_after_us,
            **options,
        )

    def commit(self, arrived: Iterable[Arrival], reached_us: Mapping[str, int]) -> None:
        """One transaction, as the owner does it."""
        self.commit_id += 1
        with transaction(self.connection):
            facts = write_exceedances(self.connection, arrived, reached_us, self.commit_id)
            self.hook.committing(self.connection, facts)
        self.hook.committed(facts)

    def play(
        self, arrived: Sequence[Arrival], *, until: int | None = None, together: int = 20
    ) -> None:
        """Commit arrivals, some together, then let time pass until a slot is final."""
        ordered = sorted(arrived, key=lambda each: each.reached_us)
        for first in range(0, len(ordered), together):
            part = ordered[first : first + together]
            self.commit(part, {part[-1].key.lane.domain: part[-1].reached_us})
        if until is not None:
            self.commit([], {"live": final_us(until)})

    def rows(self, table: str) -> list[dict[str, Any]]:
        """A table without commit numbers, in the order of its key."""
        order = ", ".join(TABLE_BY_NAME[table].key)
        found = self.connection.execute(f"SELECT * EXCLUDE commit_id FROM {table} ORDER BY {order}")
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts in the order in which they began."""
        return sorted(self.rows("alerts"), key=lambda row: (row["began_at"], row["family"]))

    def states(self, alert: str) -> list[str]:
        """States of an alert, in order."""
        return [row["state"] for row in self.rows("alert_events") if row["alert"] == alert]


def write_exceedances(
    connection: duckdb.DuckDBPyConnection,
    arrived: Iterable[Arrival],
    reached_us: Mapping[str, int],
    commit_id: int,
) -> CommitFacts:
    """What the owner writes before it calls the hook, and what it tells it."""
    increments: dict[ExceedanceKey, Exceedance] = {}
    for each in arrived:
        known = increments.get(each.key)
        increments[each.key] = each.value if known is None else known.merged(each.value)
    lanes = {lane_id(each.lane): each.lane for each in increments}
    stored = {row[0] for row in connection.execute("SELECT lane FROM lanes").fetchall()}
    for name, lane in lanes.items():
        if name not in stored:
            values = {column: getattr(lane, column) for column in LaneKey.__dataclass_fields__}
            row = {"lane": name, **values, "commit_id": commit_id}
            insert(connection, "lanes", records("lanes", [row]))
    merge_exceedances(connection, increments, commit_id)
    known_lanes = {lane_id(lane): lane for lane in (LANE, OTHER_LANE)} | lanes
    return CommitFacts(
        commit_id=commit_id, reached_us=reached_us, exceedances=increments, lanes=known_lanes
    )
