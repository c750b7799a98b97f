from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.shared_rows import SHAPES, share_finisher

from moescope.console.findings import Outcome
from moescope.console.operation_checks import check_operations
from moescope.core.clock import ManualClock, SystemClock
from moescope.core.settings import load_settings
from moescope.storage.control import insert_rows
from moescope.storage.export.exporter import export_all
from moescope.storage.places import export_folder, store_file
from moescope.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

HOUR_US = 3_600_000_000


def job_run(job: str, scheduled_for_us: int, state: str, **result: str) -> dict[str, Any]:
    """A row of `job_runs`."""
    return {
        "job": job,
        "scheduled_for": scheduled_for_us,
        "fencing_token": 1,
        "started_at": scheduled_for_us,
        "state": state,
        "trigger": "schedule",
        "result_json": json.dumps(result),
    }


def notification(name: str, **values: Any) -> dict[str, Any]:
    """A row of `outbox`."""
    return {
        "notification": name,
        "receiver": "webhook",
        "alert": "a",
        "body_json": "{}",
        "created_at": 0,
        "attempts": 3,
        "not_before": 0,
        "last_error": "",
        **values,
    }


def test_doctor_sees_jobs_and_notifications_that_went_wrong(tmp_path: Path) -> None:
    """Only a job's newest run counts; old undelivered and given-up notifications are named."""
    settings = load_settings(environment={}, options={"data.directory": str(tmp_path)})
    assert list(check_operations(settings)) == []
    now_us = SystemClock().now_us()
    rows = {
        "job_runs": [
            job_run("mended", now_us - HOUR_US, "failed", error="old"),
            job_run("mended", now_us, "done"),
            job_run("broken", now_us, "failed", error="No space.", next_step="Free some."),
            job_run("cut", now_us, "abandoned", why="its owner ended"),
        ],
        "outbox": [
            notification("late", created_at=now_us - HOUR_US, last_error="refused"),
            notification("new", created_at=now_us),
            notification("sent", delivered_at=now_us),
            notification("lost", given_up_at=now_us - HOUR_US),
        ],
    }
    with Store(store_file(tmp_path), share_finisher, SHAPES) as store:

        def plant(connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
            for table, listed in rows.items():
                insert_rows(connection, table, listed, commit_id)

        store.change(plant, author="test", action="test")
    found = [
        (each.check, each.outcome, each.detail, each.next_step)
        for each in check_operations(settings)
    ]
    assert found[:2] == [
        ("jobs", Outcome.WARNING, "the last run of broken is failed: No space.", "Free some."),
        (
            "jobs",
            Outcome.WARNING,
            "the last run of cut is abandoned: its owner ended",
            "`moescope job run cut` runs it again.",
        ),
    ]
    (told,) = found[2:]
    assert told[:2] == ("notifications", Outcome.WARNING)
    assert "1 undelivered for over 5 minutes, 1 given up in a day: refused" in told[2]


def test_doctor_sees_what_was_left_out_beside_a_running_owner(tmp_path: Path) -> None:
    """The owner has the file: its export tells of dead letters, late rows and repeated requests."""
    settings = load_settings(environment={}, options={"data.directory": str(tmp_path)})
    letters = {"reason": "malformed", "records": 7, "kept": 2, "record_bytes": 70}
    domain = {"domain": "live", "watermark_us": 0, "step_low": 0}
    with Store(store_file(tmp_path), share_finisher, SHAPES) as store:

        def plant(connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
            rows = [{**letters, "partition": name} for name in ("a", "b")]
            insert_rows(connection, "dead_letter_counts", rows, commit_id)
            insert_rows(
                connection,
                "domains",
                [{**domain, "late_rows": 5, "duplicate_windows": 3}],
                commit_id,
            )

        store.change(plant, author="test", action="test")
        export_all(store, export_folder(tmp_path), ManualClock())
        # The file itself is not to be had by the process that looks.
        found = [each for each in check_operations(settings) if each.check == "left out"]
    assert [each.detail.split()[0] for each in found] == ["14", "5", "3"]
    assert all(each.outcome is Outcome.WARNING for each in found)
    assert "replayed" in found[1].next_step
    assert "replayed" in found[2].next_step
