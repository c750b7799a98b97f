"""Checks of what is left out, and of jobs, notifications and thresholds; beside an owner, too."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from moescope.console.findings import Finding, Outcome
from moescope.console.reading import Reader
from moescope.core.settings import SETTING_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moescope.core.settings import Settings

_JOBS_SQL: Final = """
    SELECT job, arg_max(state, scheduled_for) AS state,
        arg_max(result_json, scheduled_for) AS result_json
    FROM job_runs GROUP BY job ORDER BY job
"""

_OUTBOX_SQL: Final = """
    SELECT count(*) FILTER (
            delivered_at IS NULL AND given_up_at IS NULL
            AND created_at < make_timestamp($1) - INTERVAL 5 MINUTE
        ) AS late,
        count(*) FILTER (given_up_at > make_timestamp($1) - INTERVAL 1 DAY) AS given_up,
        arg_max(last_error, created_at) FILTER (last_error <> '') AS last_error
    FROM outbox
"""

_SCOPES_SQL: Final = """
    WITH served AS (
        SELECT DISTINCT model, revision, origin, fidelity, sampling_ratio FROM windows
        WHERE close_time >= (SELECT max(close_time) - INTERVAL 1 DAY FROM windows)
    ), newest AS (
        SELECT model, revision, origin, fidelity, sampling_ratio,
            arg_max(version, (effective_from_us, activation)) AS version
        FROM threshold_activations GROUP BY ALL
    ), lines AS (
        SELECT version, count(*) AS lines, count(*) FILTER (standing = 'provisional') AS provisional
        FROM thresholds GROUP BY version
    )
    SELECT model, revision, origin, fidelity, coalesce(version, '') AS version, lines, provisional
    FROM served
        LEFT JOIN newest USING (model, revision, origin, fidelity, sampling_ratio)
        LEFT JOIN lines USING (version)
    ORDER BY ALL
"""


_LEFT_OUT: Final = (
    (
        "records that could not be used",
        "SELECT sum(records) FROM dead_letter_counts",
        "select * from dead_letter_counts; `moescope kafka dlq-list` where there is Kafka.",
    ),
    (
        "suspicious (row, layer) pairs",
        "SELECT sum(suspicious_pairs) FROM batches",
        "select node, reasons from batches where reasons <> []",
    ),
    (
        "rows lost before they were shipped",
        "SELECT sum(lost_rows - unseen_rows) FROM batches",
        "select node, lost_rows from batches where lost_rows > unseen_rows",
    ),
    (
        "rows that engines computed where nobody could see them",
        "SELECT sum(unseen_rows) FROM batches",
        "select node, unseen_rows, reasons from batches where unseen_rows > 0",
    ),
    (
        (
            "rows of token windows that had closed: their generation took over {age} s for the "
            "window, or paused for {silence} s (one row counts once for each window size)"
        ),
        "SELECT sum(late_rows) FROM batches",
        (
            "Those windows have fewer tokens, or are cut. Generation slower than {slowest} "
            "tokens per second needs windows below {longest} positions: set windows.token. Which "
            "nodes: select node, sum(late_rows) from batches group by node. Dead letters replayed "
            "while their requests went on are counted here, too."
        ),
    ),
    (
        "rows that came too late for a window",
        "SELECT sum(late_rows) FROM domains",
        (
            "Check the clocks of the nodes; rows of dead letters that were replayed 10 minutes "
            "later or more are counted here, too."
        ),
    ),
    (
        "token windows of request ids that were used before",
        "SELECT sum(duplicate_windows) FROM domains",
        (
            "Give every request an id of its own; dead letters that were replayed while their "
            "requests went on, or with --again, are counted here, too."
        ),
    ),
)
"""What was recorded and is in no window: in words, how it is counted, and what to do about it.

In braces: what `_token_limits` says.
"""


def check_operations(settings: Settings) -> Iterator[Finding]:
    """Findings on all of these; none where there is no data yet."""
    from moescope.core.clock import SystemClock
    from moescope.storage.query.errors import QuerySourceError

    # What is wrong with the store or its export is another check's finding.
    with suppress(QuerySourceError), Reader(settings) as reader:
        yield from _left_out(reader, settings)
        yield from _jobs(reader.rows(_JOBS_SQL))
        yield from _notifications(reader.rows(_OUTBOX_SQL, [SystemClock().now_us()]))
        yield from _thresholds(reader.rows(_SCOPES_SQL))


def _left_out(reader: Reader, settings: Settings) -> Iterator[Finding]:
    """What was recorded and is in no window."""
    limits = _token_limits(settings)
    numbers = ", ".join(
        f"({query}) AS what_{number}" for number, (_, query, _) in enumerate(_LEFT_OUT)
    )
    (row,) = reader.rows(f"SELECT {numbers}")
    for number, (what, _, next_step) in enumerate(_LEFT_OUT):
        if count := int(row[f"what_{number}"] or 0):
            detail = f"{count:,} {what.format_map(limits)}"
            yield Finding("left out", Outcome.WARNING, detail, next_step.format_map(limits))


def _token_limits(settings: Settings) -> dict[str, str]:
    """How long token windows stay open, and how slow a generation may be to fill the longest."""
    from moescope.processors.kernels.records import AGE_US, SILENCE_US

    declared = settings["windows.token"] or SETTING_BY_NAME["windows.token"].default
    longest = max(size for size, _ in declared)
    age = AGE_US / 1e6
    return {
        "age": f"{age:g}",
        "silence": f"{SILENCE_US / 1e6:g}",
        "longest": str(longest),
        "slowest": f"{longest / age:.1f}",
    }


def _jobs(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """Jobs whose last run failed, or ended with its owner."""
    bad = [row for row in rows if row["state"] in {"failed", "abandoned"}]
    for row in bad:
        result = json.loads(row["result_json"])
        why = result.get("error") or result.get("why") or ""
        yield Finding(
            "jobs",
            Outcome.WARNING,
            f"the last run of {row['job']} is {row['state']}: {why}",
            result.get("next_step") or f"`moescope job run {row['job']}` runs it again.",
        )
    if rows and not bad:
        yield Finding("jobs", Outcome.OK, f"the last runs of {len(rows)} jobs ended well")


def _notifications(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """Notifications that nobody received."""
    for row in rows:
        if row["late"] or row["given_up"]:
            yield Finding(
                "notifications",
                Outcome.WARNING,
                f"{row['late']:,} undelivered for over 5 minutes, {row['given_up']:,} given up in a"
                f" day: {row['last_error'] or 'no owner delivers them'}",
                "Check alerts.webhook_url and that an owner runs; `moescope alert test` tries it.",
            )
        else:
            yield Finding("notifications", Outcome.OK, "nothing waits to be delivered")


def _thresholds(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """Served revisions that nothing judges, or only provisional lines."""
    for row in rows:
        served = f"{row['model']} {row['revision']} ({row['origin']}, {row['fidelity']})"
        if not row["version"]:
            yield Finding(
                "thresholds",
                Outcome.WARNING,
                f"{served} has no thresholds in force: its windows have no level",
                "`moescope baseline create`, then `moescope threshold calibrate --activate`.",
            )
        elif row["provisional"]:
            yield Finding(
                "thresholds",
                Outcome.WARNING,
                f"{served}: {row['provisional']:,} of {row['lines']:,} lines of {row['version']} "
                "are provisional",
                "Calibrate from a longer baseline: a firm line needs 1,000 requests or blocks.",
            )
        else:
            yield Finding("thresholds", Outcome.OK, f"{served} is judged by {row['version']}")
