"""Every job of the owner. Only declarations: what a job needs is imported when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.jobs.scheduler.job import Job, JobContext, JobResult
from moescope.jobs.scheduler.schedule import Daily, Every

if TYPE_CHECKING:
    from moescope.core.settings import Settings

_RED_LINES_SQL: Final = """
    SELECT (SELECT max(slot) FROM exceedances) AS last_slot,
        (SELECT count(*) FROM alerts WHERE fired_at IS NOT NULL AND resolved_at IS NULL)
            AS open_alerts
"""
_DELIVER_SQL: Final = """
    SELECT max(delivered_at) AS last_delivered,
        count(*) FILTER (delivered_at IS NULL AND given_up_at IS NULL) AS waiting,
        count(*) FILTER (given_up_at IS NOT NULL) AS given_up
    FROM outbox
"""


PATTERNS_EVERY: Final = Every(60)


def declared_jobs(settings: Settings) -> tuple[Job, ...]:
    """The jobs, with the times that the settings give them."""
    calibrate_at, report_at, retention_at = (
        Daily.at(settings[f"jobs.{name}_at"]) for name in ("calibrate", "report", "retention")
    )
    return (
        Job(
            name="calibrate",
            what="Makes new thresholds from the baseline that the settings name, and lets them"
            " judge when they differ little from those in force.",
            when=str(calibrate_at),
            schedule=calibrate_at,
            run=_calibrate,
        ),
        Job(
            name="report",
            what="Writes the calibration report of the newest thresholds of each model.",
            when=str(report_at),
            schedule=report_at,
            run=_report,
        ),
        Job(
            name="patterns",
            what="Names what the windows since its last run look like.",
            when=str(PATTERNS_EVERY),
            schedule=PATTERNS_EVERY,
            run=_patterns,
        ),
        Job(
            name="retention",
            what="Removes rows that are older than the settings say.",
            when=str(retention_at),
            schedule=retention_at,
            run=_retention,
        ),
        Job(
            name="red-lines",
            what="Fires and resolves alerts.",
            when="in every commit",
            status_sql=_RED_LINES_SQL,
        ),
        Job(
            name="deliver",
            what="Sends notifications to their receivers.",
            when="while the owner runs",
            status_sql=_DELIVER_SQL,
        ),
        Job(
            name="export",
            what="Exports closed windows to Parquet; a run compacts the files.",
            when=f"every {settings['export.interval']:g} s",
            run=_export,
        ),
    )


def _calibrate(context: JobContext) -> JobResult:
    from moescope.jobs.scheduler.calibrating import calibrate_daily  # noqa: PLC0415 (heavy)

    return calibrate_daily(context)


def _report(context: JobContext) -> JobResult:
    from moescope.jobs.scheduler.reporting import report_newest  # noqa: PLC0415 (heavy)

    return report_newest(context)


def _patterns(context: JobContext) -> JobResult:
    from moescope.jobs.scheduler.detecting import detect_patterns  # noqa: PLC0415 (heavy)

    return detect_patterns(context)


def _retention(context: JobContext) -> JobResult:
    from moescope.jobs.scheduler.pruning import remove_old_rows  # noqa: PLC0415 (heavy)

    return remove_old_rows(context)


def _export(context: JobContext) -> JobResult:
    published = context.exporter.compact("hour")
    manifest = context.exporter.manifest
    commit = manifest.commit_id if manifest is not None else None
    return JobResult(detail={"published": published, "commit": commit})
