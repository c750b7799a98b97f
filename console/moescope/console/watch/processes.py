"""Which process is meant: this one, and whether another one still lives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_START_TIME: Final = 19
"""Field 22 of /proc/PID/stat, counted after the name in parentheses."""


def birth_of(pid: int) -> int:
    """Kernel's start time of a process in clock ticks; 0 where it is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[_START_TIME])
    except (OSError, ValueError, IndexError):
        return 0


def is_alive(pid: int, birth: int) -> bool:
    """Whether the process of this machine with that number is the one that was born then."""
    now = birth_of(pid)
    if now and birth:
        return now == birth
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
