"""What red lines remember between commits, and how it is read again from the tables."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from moescope.core.clock import NO_TIME
from moescope.core.exceedance import Exceedance
from moescope.jobs.alerts.open_alert import OpenAlert, Worst
from moescope.jobs.alerts.series import AlertSeries
from moescope.jobs.paging import AlertState, Course, Verdict
from moescope.jobs.paging.alert_course import HISTORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

    from moescope.core.emission import LaneKey
    from moescope.core.exceedance import Exceedances
    from moescope.jobs.alerts.rules import RulesInForce

SlotParts = dict[AlertSeries, dict[str, Exceedance]]
"""Per series the exceedance of each version that judged."""

_SERIES = "lane, phase, window_kind, size, stride, scope_kind, scope_value, family"
_PART = "value, metric, layer, start, request, windows, red_windows, mixed_windows"
_ALERT = (
    f"alert, {_SERIES}, state, epoch_us(began_at), epoch_us(last_slot), epoch_us(fired_at),"
    " epoch_us(resolved_at), worst_value, worst_metric, worst_layer, worst_start, worst_request,"
    " version, pattern, caused_by, historic"
)


@dataclass(slots=True)
class RedLineMemory:
    """State as of the last commit; a function of the tables.

    Attributes:
        judged_before_us: Domain → slots before this are judged, once and for all.
        waiting: Domain → slot → what arrived of it.
        open: Open alerts by series.
        ended: Alerts that are over while others of the same cause are not, by id.
    """

    judged_before_us: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, dict[int, SlotParts]] = field(default_factory=lambda: defaultdict(dict))
    open: dict[AlertSeries, OpenAlert] = field(default_factory=dict)
    ended: dict[str, OpenAlert] = field(default_factory=dict)

    def take(self, increments: Exceedances) -> set[AlertSeries]:
        """Add a commit's exceedances to the slots that wait.

        Returns:
            Series of which a slot came that is judged already. It changes no state.
        """
        late = set()
        for key, part in increments.items():
            series = AlertSeries.of(key)
            if key.slot_us < self.judged_before_us.get(key.lane.domain, NO_TIME):
                late.add(series)
                continue
            slot = self.waiting[key.lane.domain].setdefault(key.slot_us, {})
            parts = slot.setdefault(series, {})
            known = parts.get(key.version)
            parts[key.version] = part if known is None else known.merged(part)
        return late

    def find(self, alert: str) -> OpenAlert | None:
        """An alert of this memory by its id."""
        if alert in self.ended:
            return self.ended[alert]
        return next((each for each in self.open.values() if each.alert == alert), None)

    def followers(self, lead: str) -> list[OpenAlert]:
        """Open alerts that a sent one stands for."""
        return [each for each in self.open.values() if each.caused_by == lead]


def load_red_lines(
    connection: duckdb.DuckDBPyConnection, lanes: Mapping[str, LaneKey], rules: RulesInForce
) -> RedLineMemory:
    """Read everything again, slots that this transaction wrote included."""
    memory = RedLineMemory()
    memory.judged_before_us = dict(
        connection.execute("SELECT domain, judged_before_us FROM red_line_progress").fetchall()
    )
    _load_waiting(connection, lanes, memory)
    for row in connection.execute(
        f"SELECT {_ALERT} FROM alerts WHERE state <> 'resolved'"
    ).fetchall():
        alert = _alert(row, lanes)
        memory.open[alert.series] = alert
        load_history(connection, alert, rules, memory.judged_before_us)
    causes = {each.caused_by for each in memory.open.values() if each.caused_by}
    for row in connection.execute(
        f"SELECT {_ALERT} FROM alerts WHERE state = 'resolved' AND alert IN"
        " (SELECT unnest(?::VARCHAR[]))",
        [sorted(causes)],
    ).fetchall():
        alert = _alert(row, lanes)
        memory.ended[alert.alert] = alert
    _load_events(connection, memory)
    return memory


def load_history(
    connection: duckdb.DuckDBPyConnection,
    alert: OpenAlert,
    rules: RulesInForce,
    judged_before_us: Mapping[str, int],
) -> None:
    """Read again which of an alert's slots were over the line."""
    series, course = alert.series, alert.course
    columns = series.columns()
    rows = connection.execute(
        f"SELECT epoch_us(slot), version, {_PART} FROM exceedances"
        f" WHERE {' AND '.join(f'{name} = ?' for name in columns)} AND value IS NOT NULL"
        " AND slot >= make_timestamp(?) AND slot < make_timestamp(?)"
        " ORDER BY slot DESC LIMIT ?",
        [
            *columns.values(),
            course.began_us,
            judged_before_us.get(series.lane.domain, course.began_us),
            2 * HISTORY + 2,
        ],
    ).fetchall()
    history: list[bool] = []
    for slot_us, parts in groupby(reversed(rows), key=lambda row: int(row[0])):
        judged = rules.judge(series, slot_us, [(row[1], _part(row[2:])) for row in parts])
        if judged is not None:
            history.append(judged.verdict is Verdict.OVER)
    alert.course = Course(
        course.state,
        course.began_us,
        course.last_slot_us,
        course.fired_us,
        course.resolved_us,
        tuple(history[-HISTORY:]),
    )


def _load_waiting(
    connection: duckdb.DuckDBPyConnection, lanes: Mapping[str, LaneKey], memory: RedLineMemory
) -> None:
    rows = connection.execute(
        f"SELECT {', '.join(f'e.{name.strip()}' for name in _SERIES.split(','))},"
        f" epoch_us(e.slot), e.version, {_PART} FROM exceedances e JOIN lanes USING (lane)"
        " LEFT JOIN red_line_progress p ON p.domain = lanes.domain"
        " WHERE p.domain IS NULL OR epoch_us(e.slot) >= p.judged_before_us"
    ).fetchall()
    for row in rows:
        series = _series(row[:8], lanes)
        slot = memory.waiting[series.lane.domain].setdefault(int(row[8]), {})
        slot.setdefault(series, {})[row[9]] = _part(row[10:])


def _load_events(connection: duckdb.DuckDBPyConnection, memory: RedLineMemory) -> None:
    known = {each.alert: each for each in memory.open.values()} | memory.ended
    rows = connection.execute(
        "SELECT alert, max(number) FROM alert_events"
        " WHERE alert IN (SELECT unnest(?::VARCHAR[])) GROUP BY alert",
        [sorted(known)],
    ).fetchall()
    for name, number in rows:
        known[name].events = int(number)


def _series(values: tuple[Any, ...], lanes: Mapping[str, LaneKey]) -> AlertSeries:
    return AlertSeries(lanes[values[0]], *values[1:])


def _part(values: tuple[Any, ...]) -> Exceedance:
    return Exceedance(-math.inf if values[0] is None else values[0], *values[1:])


def _alert(row: tuple[Any, ...], lanes: Mapping[str, LaneKey]) -> OpenAlert:
    state, began_us, last_us, fired_us, resolved_us = row[9:14]
    return OpenAlert(
        row[0],
        _series(row[1:9], lanes),
        Course(AlertState(state), began_us, last_us, fired_us, resolved_us),
        Worst(*row[14:20]),
        pattern=row[20],
        caused_by=row[21],
        historic=row[22],
    )
