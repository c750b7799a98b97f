"""Rows about runs: who ran what, when, and what came of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moescope.jobs.scheduler.job import RunState, Trigger
from moescope.storage.control import insert_rows, replace_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

    from moescope.core.clock import Clock
    from moescope.storage.store import Store

_RUN_COLUMNS = (
    "SELECT job, epoch_us(scheduled_for) AS scheduled_for, fencing_token,"
    " epoch_us(started_at) AS started_at, epoch_us(ended_at) AS ended_at, state, trigger,"
    " result_json FROM job_runs"
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was begun: the key of its row."""

    job: str
    scheduled_for_us: int


class Ledger:
    """Keeps `job_runs` and `job_states`; each call is one transaction of the store.

    A call fails when another owner has taken over the store, so a fenced owner begins no run.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def begin_scheduled(self, job: str, scheduled_for_us: int) -> Run | None:
        """Begin the run of a planned time; None when there was one, or the job is paused."""
        return self._store.change(
            lambda connection, commit_id: (
                None
                if _is_paused(connection, job) or _has_run(connection, job, scheduled_for_us)
                else self._begin(connection, commit_id, job, scheduled_for_us, Trigger.SCHEDULE)
            ),
            author=f"job:{job}",
            action="job run",
            subject=job,
            audit=False,
        )

    def begin_now(self, job: str, author: str, reason: str) -> Run:
        """Begin a run that a person asked for, paused or not."""

        def begin(connection: duckdb.DuckDBPyConnection, commit_id: int) -> Run:
            at_us = self._clock.now_us()
            while _has_run(connection, job, at_us):
                at_us += 1
            return self._begin(connection, commit_id, job, at_us, Trigger.PERSON)

        return self._store.change(
            begin, author=author, action="job run", subject=job, reason=reason
        )

    def end(self, run: Run, state: RunState, result: Mapping[str, Any]) -> None:
        """Say what became of a run."""
        self._store.change(
            lambda connection, commit_id: replace_rows(
                connection,
                "job_runs",
                [
                    {
                        **row,
                        "state": state.value,
                        "ended_at": self._clock.now_us(),
                        "result_json": json.dumps(result, default=str),
                    }
                    for row in _rows(
                        connection,
                        f"{_RUN_COLUMNS} WHERE job = ? AND epoch_us(scheduled_for) = ?",
                        [run.job, run.scheduled_for_us],
                    )
                ],
                commit_id,
            ),
            author=f"job:{run.job}",
            action="job run",
            audit=False,
        )

    def abandon_runs_of_dead_owners(self) -> list[str]:
        """Close runs that an earlier owner never ended; returns the names of their jobs."""

        def abandon(connection: duckdb.DuckDBPyConnection, commit_id: int) -> list[str]:
            left = _rows(
                connection,
                f"{_RUN_COLUMNS} WHERE state = 'running' AND fencing_token < ?",
                [self._store.fencing_token],
            )
            why = json.dumps({"why": "its owner ended before it did"})
            closed = [
                {
                    **row,
                    "state": RunState.ABANDONED.value,
                    "ended_at": self._clock.now_us(),
                    "result_json": why,
                }
                for row in left
            ]
            replace_rows(connection, "job_runs", closed, commit_id)
            return sorted({row["job"] for row in left})

        return self._store.change(abandon, author="job:scheduler", action="job run", audit=False)

    def pause(self, job: str, *, paused: bool, author: str, reason: str) -> bool:
        """Pause or resume the schedule of a job; returns whether that changed anything."""

        def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> bool:
            if _is_paused(connection, job) == paused:
                return False
            row = {"job": job, "paused": paused, "author": author, "reason": reason}
            replace_rows(connection, "job_states", [row], commit_id)
            return True

        action = "job pause" if paused else "job resume"
        return self._store.change(change, author=author, action=action, subject=job, reason=reason)

    def last_scheduled_us(self, job: str) -> int | None:
        """Planned time of the newest scheduled run; None: it never ran."""
        with self._store.cursor() as cursor:
            row = cursor.execute(
                "SELECT epoch_us(max(scheduled_for)) FROM job_runs"
                " WHERE job = ? AND trigger = 'schedule'",
                [job],
            ).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    def _begin(
        self,
        connection: duckdb.DuckDBPyConnection,
        commit_id: int,
        job: str,
        scheduled_for_us: int,
        trigger: Trigger,
    ) -> Run:
        row = {
            "job": job,
            "scheduled_for": scheduled_for_us,
            "fencing_token": self._store.fencing_token,
            "started_at": self._clock.now_us(),
            "ended_at": None,
            "state": RunState.RUNNING.value,
            "trigger": trigger.value,
            "result_json": "{}",
        }
        insert_rows(connection, "job_runs", [row], commit_id)
        return Run(job, scheduled_for_us)


def _is_paused(connection: duckdb.DuckDBPyConnection, job: str) -> bool:
    rows = connection.execute("SELECT paused FROM job_states WHERE job = ?", [job]).fetchall()
    return any(paused for (paused,) in rows)


def _has_run(connection: duckdb.DuckDBPyConnection, job: str, scheduled_for_us: int) -> bool:
    rows = connection.execute(
        "SELECT 1 FROM job_runs WHERE job = ? AND epoch_us(scheduled_for) = ?",
        [job, scheduled_for_us],
    ).fetchall()
    return bool(rows)


def _rows(
    connection: duckdb.DuckDBPyConnection, query: str, parameters: list[object]
) -> list[dict[str, Any]]:
    found = connection.execute(query, parameters)
    names = [column[0] for column in found.description or []]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
