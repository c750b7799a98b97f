"""Gives alerts the name of what their windows look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.storage.control import replace_rows

if TYPE_CHECKING:
    import duckdb

_TIMES = ("began_at", "fired_at", "resolved_at", "last_slot")

_NAMED = f"""
    SELECT a.* REPLACE ({", ".join(f"epoch_us(a.{name}) AS {name}" for name in _TIMES)}),
        p.pattern AS found
    FROM alerts a JOIN lanes l USING (lane) JOIN patterns p
        ON (p.lane = a.lane AND p.phase = a.phase
            OR p.lane = '' AND json_extract_string(p.evidence_json, '$.model') = l.model)
        AND (p.scope_kind <> 'node' OR a.scope_kind <> 'node' OR p.scope_value = a.scope_value)
        AND p.began_at <= coalesce(a.resolved_at, a.last_slot) AND p.ended_at >= a.began_at
    WHERE a.pattern = '' AND a.fired_at IS NOT NULL AND p.pages
    QUALIFY row_number() OVER (
        PARTITION BY a.alert
        ORDER BY p.confidence DESC, least(p.ended_at, a.last_slot)
            - greatest(p.began_at, a.began_at) DESC, p.pattern
    ) = 1
    ORDER BY a.alert
"""


def unnamed_alerts(cursor: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Rows of fired alerts without a name, with the pattern that overlaps them most surely."""
    answer = cursor.execute(_NAMED)
    names = [column[0] for column in answer.description or ()][:-1]
    return [
        {**dict(zip(names, values, strict=True)), "pattern": found}
        for *values, found in answer.fetchall()
    ]


def name_alerts(connection: duckdb.DuckDBPyConnection, commit_id: int) -> int:
    """Name what can be named, inside of a transaction; returns how many alerts were.

    Whoever keeps alerts in memory has to read them again: the store says so after a change.
    """
    rows = unnamed_alerts(connection)
    if rows:
        replace_rows(connection, "alerts", rows, commit_id)
    return len(rows)
