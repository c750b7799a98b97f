"""Runs a program for as long as somebody holds its lease: `kafka_leash.py LEASE PID_FILE PROGRAM…`.

A lease is a shared flock on a file. The kernel gives it back when its holder ends, however it
ends: a killed test run leaves no broker behind, and processes that share one need no count.
Standard library alone, so that it starts in milliseconds.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_when_free(lease: Path, program: subprocess.Popen[bytes]) -> None:
    with lease.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # The lock is kept until this process ends: who takes the lease next finds nothing running.
        program.kill()
        program.wait()
        os._exit(0)


def main(lease: str, pid_file: str, *command: str) -> None:
    """Run the program, and kill it once nobody holds the lease."""
    program = subprocess.Popen(command, preexec_fn=_die_with_parent)  # noqa: PLW1509 (no threads yet)
    fresh = Path(f"{pid_file}.new")
    fresh.write_text(str(program.pid))
    fresh.rename(pid_file)
    threading.Thread(target=_kill_when_free, args=(Path(lease), program), daemon=True).start()
    status = program.wait()
    # Not sys.exit: the thread may be waiting for the lock for ever.
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main(*sys.argv[1:])
