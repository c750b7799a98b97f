"""Paging rules, and their statistic where the version has judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.exceedance import SLOT_US
from moescope.jobs.reports.rows import fetch, rounded
from moescope.jobs.reports.schema import Paging, Timeline
from moescope.jobs.reports.words import moment

if TYPE_CHECKING:
    import duckdb

    from moescope.jobs.reports.rows import Head

LONGEST_DAYS = 1
MOST_POINTS = 1_000
MOST_TIMELINES = 4
_SERIES = "lane, phase, window_kind, size, stride, scope_kind, scope_value, family"


def paging_facts(cursor: duckdb.DuckDBPyConnection, head: Head) -> list[Paging]:
    """The rules, as solved."""
    columns = list(Paging.__annotations__)
    rows = fetch(
        cursor,
        f"SELECT {', '.join(columns)} FROM paging_rules WHERE version = ?"
        " ORDER BY phase, window_kind, size, stride, scope_kind, family",
        [head.version],
    )
    return [Paging(**dict(zip(columns, row, strict=True))) for row in rows]  # type: ignore[typeddict-item]  # columns are its fields


def timeline_facts(cursor: duckdb.DuckDBPyConnection, head: Head) -> list[Timeline]:
    """The newest day of the series that came farthest, at most `MOST_TIMELINES` of them."""
    series = fetch(
        cursor,
        f"SELECT {_SERIES}, max(slot) FROM exceedances WHERE version = ? GROUP BY ALL"
        f" ORDER BY max(value) DESC NULLS LAST, {_SERIES} LIMIT {MOST_TIMELINES}",
        [head.version],
    )
    names = [name.strip() for name in _SERIES.split(",")]
    found = []
    for *key, newest in series:
        slots = fetch(
            cursor,
            f"SELECT slot, value FROM exceedances WHERE version = ?"
            f" AND ({_SERIES}) = ({', '.join('?' * len(key))})"
            f" AND slot > ? - INTERVAL {LONGEST_DAYS} DAY ORDER BY slot",
            [head.version, *key, newest],
        )
        first = slots[0][0]
        seconds = SLOT_US // 1_000_000
        spanned = (newest - first).total_seconds() // seconds + 1
        seconds *= int(-(-spanned // MOST_POINTS))
        points: dict[int, tuple[str, float | None]] = {}
        for slot, value in slots:
            place = int((slot - first).total_seconds()) // seconds
            when, worst = points.get(place, (moment(slot) or "", None))
            known = [each for each in (worst, rounded(value)) if each is not None]
            points[place] = when, max(known, default=None)
        of = dict(zip(names, key, strict=True))
        found.append(
            Timeline(
                phase=of["phase"],
                window_kind=of["window_kind"],
                size=of["size"],
                stride=of["stride"],
                scope_kind=of["scope_kind"],
                scope_value=of["scope_value"],
                family=of["family"],
                slots=[when for when, _ in points.values()],
                values=[value for _, value in points.values()],
                seconds_per_point=seconds,
            )
        )
    return found
