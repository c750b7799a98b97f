"""`engine_fault`: what the gates kept out of the counts, per node and minute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.jobs.patterns.finding import Finding
from moescope.jobs.patterns.stretches import Shown, stretches

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

MINUTE_US: Final = 60_000_000
TOLERATED: Final = 1e-3

_SUSPICIOUS = """
    WITH shapes AS (
        SELECT model, revision, max(len(layers)) AS layers FROM lanes GROUP BY ALL
    ), faulty AS (
        SELECT node, model, revision, epoch_us(date_trunc('minute', append_time)) AS minute,
            sum(accepted_rows)::BIGINT AS rows, sum(suspicious_pairs)::BIGINT AS pairs,
            list_sort(list_distinct(flatten(list(reasons)))) AS reasons
        FROM batches
        WHERE append_time >= make_timestamp(?) AND append_time < make_timestamp(?)
            AND NOT (list_contains(reasons, 'repeated_generation')
                AND list_has_all(['repeated_generation', 'suspicious_rows'], reasons))
        GROUP BY ALL HAVING sum(suspicious_pairs) > 0
    )
    SELECT node, model, revision, minute, rows, pairs, reasons, coalesce(layers, 1) AS layers
    FROM faulty LEFT JOIN shapes USING (model, revision)
    ORDER BY ALL
"""


def engine_fault_findings(
    cursor: duckdb.DuckDBPyConnection, from_us: int, to_us: int
) -> Iterator[Finding]:
    """Nodes whose rows cannot be what a router chose.

    Args:
        cursor: For reading.
        from_us: Earliest append time of batches.
        to_us: First append time of batches that is left out.
    """
    nodes: dict[tuple[str, str, str], dict[int, tuple[float, int, int, list[str]]]] = {}
    for node, model, revision, minute, rows, pairs, reasons, layers in cursor.execute(
        _SUSPICIOUS, [from_us, to_us]
    ).fetchall():
        share = pairs / max(rows * layers, pairs)
        nodes.setdefault((node, model, revision), {})[minute] = (share, rows, pairs, reasons)
    for (node, model, revision), minutes in nodes.items():
        shown = [
            Shown(minute, minute + MINUTE_US, share if share > TOLERATED else 0.0)
            for minute, (share, _, _, _) in minutes.items()
        ]
        for stretch in stretches(shown, 1, 1):
            share, rows, pairs, reasons = minutes[stretch.peak_us]
            yield Finding(
                pattern="engine_fault",
                lane="",
                phase="",
                scope_kind="node",
                scope_value=node,
                window_kind="time",
                size=MINUTE_US,
                began_us=stretch.begin_us,
                ended_us=stretch.end_us,
                # Not a matter of degree: a router does not do this at all.
                confidence=1.0,
                evidence={
                    "model": model,
                    "revision": revision,
                    "minutes": stretch.windows,
                    "suspicious_share": round(share, 6),
                    "rows": rows,
                    "suspicious_pairs": pairs,
                    "reasons": reasons,
                },
            )
