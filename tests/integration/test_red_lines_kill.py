"""Owners killed between commits page the same people as one that was never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.killed_red_lines import apply, commits, stored, tables
from support.outbox_store import open_store

PROGRAM = Path(__file__).parents[1] / "support" / "killed_red_lines.py"


def killed_after(path: Path, count: int) -> None:
    """Let a process make some commits, and kill it as it stands."""
    folders = os.pathsep.join(folder for folder in sys.path if folder)
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(path), str(count)],
        env={**os.environ, "PYTHONPATH": folders},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(count):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)


def test_kills_between_commits_change_no_alert(tmp_path: Path) -> None:
    """Alerts, events and notifications are what an undisturbed owner writes."""
    with open_store(tmp_path / "whole.duckdb") as store:
        assert apply(store) == len(commits())
        expected = tables(store)
    assert {row[2] for row in expected["alert_events"]}, "the stream makes alerts"
    path = tmp_path / "killed.duckdb"
    for count in (1, 2, 3):
        killed_after(path, count)
    with open_store(path) as store:
        assert stored(store) == 6
        apply(store)
        assert tables(store) == expected
