"""What `moescope job list` and `doctor` say of jobs, from the tables and the export."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from moescope.console.reading import Reader

if TYPE_CHECKING:
    from moescope.core.settings import Settings
    from moescope.jobs.scheduler.job import Job

_LAST_RUNS: Final = """
    SELECT job, max(scheduled_for) AS last_run, arg_max(state, scheduled_for) AS state,
        arg_max(trigger, scheduled_for) AS trigger,
        arg_max(result_json, scheduled_for) AS result_json,
        arg_max(ended_at, scheduled_for) AS ended
    FROM job_runs GROUP BY job
"""


def job_status(settings: Settings) -> list[dict[str, Any]]:
    """One entry per job, as `moescope job list --json` shows it."""
    from moescope.jobs.scheduler.catalogue import declared_jobs

    with Reader(settings) as reader:
        last = {row["job"]: row for row in reader.rows(_LAST_RUNS)}
        paused = {
            row["job"]: bool(row["paused"])
            for row in reader.rows("SELECT job, paused FROM job_states")
        }
        return [
            {
                "job": job.name,
                "what": job.what,
                "when": job.when,
                "paused": paused.get(job.name, False),
                **_last_run(job, last.get(job.name), reader, settings),
            }
            for job in declared_jobs(settings)
        ]


def _last_run(
    job: Job, row: dict[str, Any] | None, reader: Reader, settings: Settings
) -> dict[str, Any]:
    status = _status(job, reader, settings)
    if row is None:
        return {"last_run": None, "ended": None, "state": "", "trigger": "", "result": status}
    result = {**json.loads(row["result_json"]), **status}
    return {
        **{name: row[name] for name in ("last_run", "ended", "state", "trigger")},
        "result": result,
    }


def _status(job: Job, reader: Reader, settings: Settings) -> dict[str, Any]:
    if job.status_sql:
        return reader.rows(job.status_sql)[0]
    return _export_status(settings) if job.name == "export" else {}


def _export_status(settings: Settings) -> dict[str, Any]:
    from moescope.console.times import shown
    from moescope.core.clock import SystemClock
    from moescope.storage.export.manifest import read_manifest
    from moescope.storage.places import export_folder

    folder = export_folder(settings.data_directory)
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is None:
        return {}
    return {
        "exported_at": shown(manifest.written_at_us),
        "age_seconds": round((SystemClock().now_us() - manifest.written_at_us) / 1e6, 1),
        "commit": manifest.commit_id,
    }
