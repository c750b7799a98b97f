"""What happened while a baseline was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.jobs.baselines.selection import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb


def fired_spans(cursor: duckdb.DuckDBPyConnection, lanes: Sequence[str]) -> tuple[Span, ...]:
    """Event times during which alerts of these lanes stood, if they fired.

    From the first slot over the line to the end; alerts that are not over yet, to the newest slot
    that was looked at.
    """
    rows = cursor.execute(
        "SELECT epoch_us(began_at), epoch_us(coalesce(resolved_at, last_slot)) FROM alerts"
        " WHERE fired_at IS NOT NULL AND list_contains(?::VARCHAR[], lane) ORDER BY 1, 2",
        [list(lanes)],
    ).fetchall()
    return tuple(Span(begin, max(end, begin + 1)) for begin, end in rows)
