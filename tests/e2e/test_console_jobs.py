from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import MOESCOPE, TIMEOUT_SECONDS, environment, moescope, query

from moescope.console.spool.folder import SpoolFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with an empty store."""
    folder = tmp_path_factory.mktemp("jobs")
    moescope("run", "all", "--until-idle", "--data", "data", folder=folder)
    return folder / "data"


@pytest.fixture
def owner(data: Path) -> Iterator[subprocess.Popen[str]]:
    """An owner of it that serves commands."""
    process = subprocess.Popen(
        [MOESCOPE, "run", "all", "--data", data],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    give_up = time.monotonic() + TIMEOUT_SECONDS
    while not SpoolFolder(data).is_served() and time.monotonic() < give_up:
        time.sleep(0.05)
    yield process
    process.send_signal(signal.SIGTERM)
    _, noted = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, noted
    assert "Traceback" not in noted


def told(*words: str | Path, data: Path, expect: int = 0) -> Any:
    """What a command prints as JSON."""
    outcome = moescope(*words, "--data", data, "--json", folder=data.parent, expect=expect)
    return json.loads(outcome.stdout)


def jobs(data: Path) -> dict[str, dict[str, Any]]:
    """`moescope job list`, by job."""
    return {each["job"]: each for each in told("job", "list", data=data)}


def test_jobs_are_run_paused_and_resumed_without_an_owner(data: Path) -> None:
    """The command line opens the store itself; what it did is listed and audited."""
    assert {each["when"] for each in jobs(data).values()} >= {"daily at 03:00 UTC"}
    paused = told("job", "pause", "report", "--yes", "--reason", "moving", data=data)
    assert paused == {"job": "report", "paused": True, "changed": True}
    assert jobs(data)["report"]["paused"]
    told("job", "resume", "report", "--yes", data=data)
    assert not jobs(data)["report"]["paused"]
    assert told("job", "run", "export", "--yes", data=data)["state"] == "done"
    assert jobs(data)["export"]["state"] == "done"
    audit = query(
        data,
        "SELECT action, subject, reason FROM audit WHERE subject <> 'calibrate' ORDER BY number",
    )
    assert [tuple(row.values()) for row in audit][:3] == [
        ("job pause", "report", "moving"),
        ("job resume", "report", ""),
        ("job run", "export", ""),
    ]


def test_a_running_owner_carries_commands_out(data: Path, owner: subprocess.Popen[str]) -> None:
    """Beside an owner the same commands work, and a refusal arrives with its exit code."""
    paused = told("job", "pause", "calibrate", "--yes", "--reason", "rebuild", data=data)
    assert paused["changed"]
    nothing = told("job", "run", "calibrate", "--yes", data=data, expect=4)
    assert nothing["state"] == "nothing"
    refused = moescope("job", "run", "red-lines", "--yes", "--data", data, folder=data, expect=2)
    assert "in every commit" in refused.stderr
    assert owner.poll() is None
    give_up = time.monotonic() + TIMEOUT_SECONDS
    while not jobs(data)["calibrate"]["paused"] and time.monotonic() < give_up:
        time.sleep(0.2)  # the export that readers see is about a second old
    assert jobs(data)["calibrate"]["state"] == "nothing"
    assert list((data / "commands").glob("*.json")) == []


def test_changes_ask_first(data: Path) -> None:
    """Without a yes nothing is changed."""
    refused = moescope(
        "job", "pause", "export", "--data", data, folder=data, answers="n\n", expect=2
    )
    assert "Nothing was done" in refused.stderr
    missing = moescope("job", "run", "export", "--yes", "--data", "no", folder=data, expect=2)
    assert "There is no store" in missing.stderr
