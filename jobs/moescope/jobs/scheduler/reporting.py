"""The job `report`: the calibration report of the newest thresholds of each model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.jobs.reports import calibration_report
from moescope.jobs.scheduler.job import JobContext, JobResult

if TYPE_CHECKING:
    from pathlib import Path

REPORTS_FOLDER: Final = "reports"

_NEWEST_SQL: Final = """
    SELECT arg_max(version, (created_at, commit_id)) AS version FROM threshold_versions
    GROUP BY model, revision, origin, fidelity, sampling_ratio ORDER BY 1
"""


def reports_folder(data_directory: Path) -> Path:
    """Where reports of jobs lie."""
    return data_directory / REPORTS_FOLDER


def report_newest(context: JobContext) -> JobResult:
    """Write the reports; those of older versions stay."""
    folder = reports_folder(context.data_directory)
    with context.store.cursor() as cursor:
        versions = [version for (version,) in cursor.execute(_NEWEST_SQL).fetchall()]
        if not versions:
            return JobResult.nothing("there are no thresholds yet")
        files = [calibration_report(cursor, version, folder) for version in versions]
    return JobResult(detail={"written": [str(each.html) for each in files]})
