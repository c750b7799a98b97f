"""A roll-up that is killed anywhere loses nothing and counts nothing twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.killed_rounds import judge, run_killed, write_round
from support.small_windows import CONFIG, roll_up_logs
from support.stored import expected_windows, stored_windows

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 20


def test_stored_windows_equal_the_plain_roll_up(tmp_path: Path) -> None:
    """Logs of two partitions give exactly the oracle's windows of all four kinds."""
    records = write_round(tmp_path, 11, 60)
    roll_up_logs(tmp_path / "log", tmp_path / "store.duckdb", commit_records=16)
    stored = stored_windows(tmp_path / "store.duckdb")
    assert stored == expected_windows(records, CONFIG)
    assert {key[0] for key in stored} == {"token", "time", "task", "step"}


@pytest.mark.timeout(400)  # many processes; a busy machine starts them slowly
def test_killed_roll_up_ends_with_the_same_tables(tmp_path: Path) -> None:
    """After 20 processes were killed with windows open, every table is as if none had been."""
    folders = [tmp_path / f"round-{number}" for number in range(6)]
    records = {folder.name: write_round(folder, n, 40) for n, folder in enumerate(folders)}
    kills = run_killed(folders, KILLS, seed=1)
    assert sum(kills.values()) >= KILLS
    for name, number in kills.items():
        found = judge(tmp_path / name, records[name], number)
        assert (found.lost, found.twice, found.same_tables) == (0, 0, True)
