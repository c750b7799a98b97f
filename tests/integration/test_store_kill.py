"""A store whose process is killed at any moment loses nothing and counts nothing twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from support import apply_rows
from support.shared_rows import SHAPES, share_finisher

from moescope.core.tables import TABLE_BY_NAME
from moescope.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = 40
KILLS = 8
SEED = 11
BOOKKEEPING = {"row_version", "commit_id"}


def start(path: Path) -> subprocess.Popen[str]:
    """The process that applies what is left."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, apply_rows.__file__, str(path), str(SEED), str(RECORDS)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def tables(path: Path) -> dict[str, list[str]]:
    """Everything that an interruption must not change."""
    found = {}
    with Store(path, share_finisher, SHAPES) as store:
        cursor = store.cursor()
        for name in ("windows", "metric_histograms", "reference_distributions", "batches"):
            columns = [c for c in TABLE_BY_NAME[name].column_names if c not in BOOKKEEPING]
            rows = cursor.execute(f"SELECT {', '.join(columns)} FROM {name}").fetchall()
            found[name] = sorted(map(repr, rows))
        cursor.close()
    return found


@pytest.mark.timeout(300)
def test_kills_between_and_inside_commits(tmp_path: Path) -> None:
    """After each kill the next process continues, and the tables are an uninterrupted run's."""
    chance = random.Random(2)
    killed = tmp_path / "killed.duckdb"
    kills = 0
    while True:
        process = start(killed)
        assert process.stdout is not None
        if kills < KILLS:
            for _ in range(chance.randrange(1, 4)):
                process.stdout.readline()
            # Somewhere inside the next commit, or in the moment after it.
            time.sleep(chance.random() * 0.05)
            process.send_signal(signal.SIGKILL)
        process.stdout.read()
        process.stdout.close()
        code = process.wait()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
    assert kills >= KILLS // 2
    untouched = tmp_path / "untouched.duckdb"
    process = start(untouched)
    process.communicate()
    assert process.returncode == 0
    assert tables(killed) == tables(untouched)
