"""Rounds of killed roll-ups: logs to read, processes to kill, stores to compare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import duckdb
from support.small_windows import CONFIG, roll_up_logs
from support.stored import expected_windows, stored_windows, tables
from support.streams import Cut, Plan, cut_stream, make_stream, write_log

if TYPE_CHECKING:
    from oracles.windows_plain import Record

TESTS = Path(__file__).resolve().parent.parent


class Round(NamedTuple):
    """What one log's killed roll-up came to.

    Attributes:
        kills: Processes killed on the way.
        commits: Transactions in the store at the end.
        rows: Rows accepted; windows: rows of the `windows` table.
        lost, twice: Assignments of all windows short of, and beyond, the oracle's.
        same_tables: Whether every table equals that of a roll-up without kills.
    """

    kills: int
    commits: int
    rows: int
    windows: int
    lost: int
    twice: int
    same_tables: bool


def write_round(folder: Path, seed: int, passes: int) -> dict[str, list[Record]]:
    """Write the logs of two partitions, of which one has a training node."""
    records = {
        site: cut_stream(
            make_stream(
                Plan(seed=seed * 2 + index, nodes=2, passes=passes, training=index == 1, site=site)
            ),
            Cut(7, 300_000, repeat=9),
        )
        for index, site in enumerate(("east-", "west-"))
    }
    for site, each in records.items():
        write_log(folder / "log", site.rstrip("-"), each)
    return records


def run_killed(folders: list[Path], kills: int, seed: int) -> dict[str, int]:
    """Roll logs up in processes that are killed; gives kills by folder name."""
    done = subprocess.run(
        [sys.executable, TESTS / "support/killed_pipeline.py", str(kills), str(seed), *folders],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


def judge(folder: Path, records: dict[str, list[Record]], kills: int) -> Round:
    """Compare a killed roll-up with the oracle, and with one that was left alone."""
    killed, alone = folder / "store.duckdb", folder / "alone.duckdb"
    roll_up_logs(folder / "log", alone, commit_records=64)
    stored, expected = stored_windows(killed), expected_windows(records, CONFIG)
    lost = twice = 0
    for key in stored.keys() | expected.keys():
        off = _tokens(stored.get(key)) - _tokens(expected.get(key))
        lost, twice = lost + max(-off, 0), twice + max(off, 0)
    with duckdb.connect(str(killed), read_only=True) as connection:
        commits, rows = connection.execute(
            "SELECT (SELECT last_commit_id FROM owner), (SELECT sum(accepted_rows) FROM batches)"
        ).fetchall()[0]
    same = stored == expected and tables(killed) == tables(alone)
    return Round(kills, commits, rows, len(stored), lost, twice, same)


def _tokens(window: tuple[object, ...] | None) -> int:
    if window is None:
        return 0
    assert isinstance(window[6], tuple)
    return sum(window[6])
