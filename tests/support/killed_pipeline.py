"""Roll logs up in processes that are killed at random moments, until enough were killed.

Run as a program: `killed_pipeline.py KILLS SEED FOLDER…`. Each folder holds `log/`; its store is
`store.duckdb`. The program imports and compiles everything once, and forks a process for each
start, so that a start costs little more than opening the store and reading again. Prints how
many processes were killed, as JSON per folder. Folders after enough kills are not touched.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from support.rolled_up import roll_up
from support.small_windows import CONFIG, roll_up_logs
from support.streams import NATURAL, Plan, cut_stream, make_stream, source_records

from moescope.processors import pipeline

COMMITS_BEFORE = (0, 0, 1, 1, 2, 4)
"""After how many commits a process is killed, one of these: often before the first."""
LONGEST_WAIT_S = 0.3
"""And that long afterwards: somewhere in the next commit or two."""


def compile_kernels() -> None:
    """Run the kernels once: what is forked later has them in memory."""
    roll_up(source_records(cut_stream(make_stream(Plan(seed=1, passes=8)), NATURAL)), CONFIG)


def start(folder: Path) -> tuple[int, int]:
    """Fork a process that rolls a folder's log up; gives its id, and a pipe of its commits."""
    commits, report = os.pipe()
    process = os.fork()
    if process:
        os.close(report)
        return process, commits
    try:
        roll_up_logs(folder / "log", folder / "store.duckdb", on_commit=lambda _: _tell(report))
    except BaseException:  # noqa: BLE001 (the process ends here whatever happened)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _tell(report: int) -> None:
    os.write(report, b".")


def kill_until_done(folder: Path, chance: random.Random) -> int:
    """Start and kill until a process reaches the end of the log; gives the number killed."""
    killed = 0
    while True:
        process, commits = start(folder)
        left = chance.choice(COMMITS_BEFORE)
        while left and os.read(commits, 1):
            left -= 1
        time.sleep(chance.random() * LONGEST_WAIT_S)
        os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        os.close(commits)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status):
            sys.exit(1)
        else:
            return killed


def main() -> None:
    """Kill until there were enough."""
    wanted, seed, *folders = sys.argv[1:]
    chance = random.Random(int(seed))
    compile_kernels()
    # Read little at a time, so that commits come often and a kill hits one in the middle.
    pipeline.READ_RECORDS = 4
    killed: dict[str, int] = {}
    for folder in map(Path, folders):
        if sum(killed.values()) < int(wanted):
            killed[folder.name] = kill_until_done(folder, chance)
    json.dump(killed, sys.stdout)


if __name__ == "__main__":
    main()
