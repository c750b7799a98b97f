"""The job `patterns`: detectors over what was closed since they last ran."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from moescope.jobs.patterns import detect
from moescope.jobs.scheduler.job import JobContext, JobResult

if TYPE_CHECKING:
    import duckdb

_LAST_COMMIT: Final = """
    SELECT result_json FROM job_runs WHERE job = 'patterns' AND state = 'done'
    ORDER BY started_at DESC LIMIT 1
"""

_NEW: Final = """
    SELECT min(epoch_us(seen_at)), max(epoch_us(seen_at)), max(commit_id) FROM (
        SELECT close_time AS seen_at, commit_id FROM windows WHERE commit_id > $1
        UNION ALL
        SELECT append_time, commit_id FROM batches WHERE commit_id > $1
    )
"""


def detect_patterns(context: JobContext) -> JobResult:
    """Look at the event time of everything that was committed since the last run."""
    with context.store.cursor() as cursor:
        span = _new_span(cursor, _last_commit(cursor))
    if span is None:
        return JobResult.nothing("nothing was committed since the last run")
    from_us, to_us, commit_id = span
    detection = detect(context.store, from_us, to_us + 1)
    return JobResult(
        detail={
            "commit": commit_id,
            "found": [f"{each.pattern} ({each.name})" for each in detection.found],
            "extended": [each.name for each in detection.extended],
        }
    )


def _last_commit(cursor: duckdb.DuckDBPyConnection) -> int:
    row = cursor.execute(_LAST_COMMIT).fetchone()
    return int(json.loads(row[0]).get("commit", -1)) if row else -1


def _new_span(cursor: duckdb.DuckDBPyConnection, commit_id: int) -> tuple[int, int, int] | None:
    row = cursor.execute(_NEW, [commit_id]).fetchone()
    if row is None or row[0] is None:
        return None
    return int(row[0]), int(row[1]), int(row[2])
