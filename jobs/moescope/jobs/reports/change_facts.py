"""What moved against the version that was in force before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.jobs.reports.rows import KEY, KEY_SQL, fetch, rounded, windows_key
from moescope.jobs.reports.schema import Change, Changes

if TYPE_CHECKING:
    import duckdb

    from moescope.jobs.reports.rows import Head

MOST_LISTED = 12
_LINES = ("warn_low", "warn_high", "red_low", "red_high")


def change_facts(cursor: duckdb.DuckDBPyConnection, head: Head, against: str | None) -> Changes:
    """Every line beside the same line before; the largest moves are listed.

    A move is `beyond_interval` when the line before lies outside of the new line's 95 % interval.
    """
    if against is None:
        return Changes(
            against=None, compared=0, beyond_interval=0, appeared=0, gone=0, largest=[]
        )  # fmt: skip
    on = " AND ".join(f"n.{column} = o.{column}" for column in (*KEY, "metric", "layer"))
    keys = ", ".join(f"n.{column}" for column in (*KEY, "metric", "layer"))
    each_line = " UNION ALL ".join(
        f"SELECT {keys}, '{line}' AS line, o.{line} AS before, n.{line} AS after,"
        f" n.spread AS spread, (o.{line} < n.{line}_from OR o.{line} > n.{line}_to) AS beyond"
        f" FROM new n JOIN old o ON {on} WHERE o.{line} IS NOT NULL AND n.{line} IS NOT NULL"
        for line in _LINES
    )
    both = (
        "WITH new AS (SELECT * FROM thresholds WHERE version = ?),"
        " old AS (SELECT * FROM thresholds WHERE version = ?) "
    )
    versions = [head.version, against]
    compared, beyond = fetch(
        cursor,
        f"{both} SELECT count(*), count(*) FILTER (beyond) FROM ({each_line})",
        versions,
    )[0]
    appeared = fetch(
        cursor, f"{both} SELECT count(*) FROM new n ANTI JOIN old o ON {on}", versions
    )  # fmt: skip
    gone = fetch(
        cursor, f"{both} SELECT count(*) FROM old o ANTI JOIN new n ON {on}", versions
    )  # fmt: skip
    largest = fetch(
        cursor,
        f"{both} SELECT {KEY_SQL}, metric, layer, line, before, after,"
        f" abs(after - before) / spread AS moved, coalesce(beyond, false) FROM ({each_line})"
        f" WHERE after <> before ORDER BY moved DESC, {KEY_SQL}, metric, layer, line"
        f" LIMIT {MOST_LISTED}",
        versions,
    )
    return Changes(
        against=against,
        compared=compared,
        beyond_interval=beyond,
        appeared=appeared[0][0],
        gone=gone[0][0],
        largest=[
            Change(
                key=windows_key((phase, kind, size, stride, scope_kind, scene, band)),
                metric=metric,
                layer=layer,
                line=line,
                before=rounded(before) or 0.0,
                after=rounded(after) or 0.0,
                in_spreads=rounded(moved) or 0.0,
                beyond_interval=beyond_it,
            )
            for (
                phase, kind, size, stride, scope_kind, scene, band, metric, layer, line, before,
                after, moved, beyond_it,
            ) in largest
        ],
    )  # fmt: skip
