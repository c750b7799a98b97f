"""Kill roll-ups many times, and write what came of it into docs/reliability.md.

Usage: run_faults.py [KILLS] [SEED]
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.fleet_results import present_commit, refusal  # noqa: E402 - on the path just now
from support.killed_rounds import Round, judge, run_killed, write_round  # noqa: E402 - on the path just now

PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- results: make faults -->", "<!-- end of results -->"
PASSES = 60
KILLS_PER_ROUND = 3
"""Fewer than any round takes, so that there are always enough logs."""


def table(found: Sequence[Round]) -> str:
    """The results, one row per round and a sum."""
    lines = [
        "| round | killed | commits | rows | window rows | lost | counted twice | tables equal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number, one in enumerate(found, start=1):
        same = "yes" if one.same_tables else "NO"
        cells = (number, one.kills, one.commits, one.rows, one.windows, one.lost, one.twice, same)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    sums = [sum(getattr(one, name) for one in found) for name in Round._fields[:-1]]
    same = "yes" if all(one.same_tables for one in found) else "NO"
    lines.append("| **all** | " + " | ".join(f"**{number}**" for number in (*sums, same)) + " |")
    return "\n".join(lines)


def circumstances(commit: str, seed: int) -> str:
    """Commit, versions and machine of a run."""
    parts = ", ".join(f"{name} {version(name)}" for name in ("duckdb", "numpy", "numba"))
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}, seed {seed}, Python "
        f"{platform.python_version()}, {parts}, {os.cpu_count()} cores, {platform.system()} "
        f"{platform.machine()}."
    )


def main() -> None:
    """Run, write the page, and fail if anything was lost or counted twice."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    commit = present_commit()
    with tempfile.TemporaryDirectory() as directory:
        folders = [Path(directory) / f"{n}" for n in range(kills // KILLS_PER_ROUND + 1)]
        records = {
            folder.name: write_round(folder, 1_000 * seed + number, PASSES)
            for number, folder in enumerate(folders)
        }
        killed = run_killed(folders, kills, seed)
        found = [
            judge(Path(directory) / name, records[name], number) for name, number in killed.items()
        ]
    sys.stdout.write(table(found) + "\n")
    if why := refusal(commit):
        sys.stderr.write(f"The page is not written: {why}\n")
    else:
        text = PAGE.read_text(encoding="utf-8")
        head, rest = text.split(BEGIN)
        tail = rest.split(END)[1]
        results = f"{BEGIN}\n\n{circumstances(commit, seed)}\n\n{table(found)}\n\n{END}"
        PAGE.write_text(head + results + tail, encoding="utf-8")
    if not all((one.lost, one.twice, one.same_tables) == (0, 0, True) for one in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
