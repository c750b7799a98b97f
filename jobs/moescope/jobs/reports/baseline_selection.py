"""The stored windows that a baseline is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.jobs.baselines import Baseline, fired_spans
from moescope.jobs.reports.judged_windows import Selection
from moescope.jobs.reports.rows import SCOPE, fetch

if TYPE_CHECKING:
    import duckdb

    from moescope.jobs.reports.rows import Head
    from moescope.jobs.reports.schema import BaselineFacts

_IN_LIST = "(len(?::VARCHAR[]) = 0 OR list_contains(?::VARCHAR[], w.{}))"


def baseline_of(facts: BaselineFacts) -> Baseline:
    """The selection as a value."""
    return Baseline.from_json(facts["baseline"], facts["version"], facts["selection"])


def baseline_windows(
    cursor: duckdb.DuckDBPyConnection, head: Head, baseline: Baseline, minimum_coverage: float
) -> Selection:
    """Condition over `windows w`: the windows that calibration read, as far as they are stored.

    Args:
        cursor: For reading.
        head: Of the version.
        baseline: What it was made from.
        minimum_coverage: Of its calibration.
    """
    out = list(baseline.without_spans)
    if baseline.without_alerts:
        scope = " AND ".join(f"{column} = ?" for column in SCOPE)
        lanes = fetch(cursor, f"SELECT lane FROM lanes WHERE {scope}", list(head.scope))
        out += fired_spans(cursor, [lane for (lane,) in lanes])
    parts = ["w.stride = w.size", "(w.complete OR w.window_kind <> 'token')", "w.coverage >= ?"]
    values: list[Any] = [minimum_coverage]
    for column, wanted in (("domain", baseline.domains), ("node", baseline.nodes)):
        parts.append(_IN_LIST.format(column))
        values += [list(wanted), list(wanted)]
    if baseline.spans:
        inside = " OR ".join(
            "(epoch_us(w.first_time) >= ? AND epoch_us(w.last_time) < ?)" for _ in baseline.spans
        )
        parts.append(f"({inside})")
        values += [end for span in baseline.spans for end in span]
    for begin, end in out:
        parts.append(
            "(w.first_time IS NULL OR epoch_us(w.last_time) < ? OR epoch_us(w.first_time) >= ?)"
        )
        values += [begin, end]
    if baseline.scenes:
        parts.append("(len(w.scenes) > 0 AND list_has_all(?::VARCHAR[], w.scenes))")
        values.append(list(baseline.scenes))
    if baseline.without_nodes:
        parts.append("(w.node <> '' AND NOT list_contains(?::VARCHAR[], w.node))")
        values.append(list(baseline.without_nodes))
    return Selection(" AND ".join(parts), tuple(values))
