"""The job `retention`: old rows go."""

from __future__ import annotations

from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.core.emission import LIVE_DOMAIN
from moescope.jobs.scheduler.job import JobContext, JobResult
from moescope.storage.retention import remove_old


def remove_old_rows(context: JobContext) -> JobResult:
    """Remove rows whose lifetime is over by the newest event time of the fleet.

    A fleet that is silent loses nothing; a clock that runs ahead does not make rows older.
    """
    with context.store.cursor() as cursor:
        row = cursor.execute(
            "SELECT max(watermark_us) FROM offsets WHERE domain = ? AND watermark_us < ?",
            [LIVE_DOMAIN, END_OF_TIME],
        ).fetchone()
    newest_us = row[0] if row is not None and row[0] is not None else NO_TIME
    if newest_us == NO_TIME:
        return JobResult.nothing("no live windows are stored; imports and simulations are kept")
    removed = remove_old(
        context.store,
        now_us=min(newest_us, context.clock.now_us()),
        windows_days=context.settings["retention.windows"],
        red_days=context.settings["retention.red"],
    )
    return (
        JobResult(detail={"removed": removed}) if removed else JobResult.nothing("nothing is old")
    )
