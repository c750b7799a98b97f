"""Opening the store file as its only owner."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import duckdb

from moescope.storage.errors import StoreInUseError, StoreUnreadableError

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINT_THRESHOLD = "1GB"
"""Checkpoints stall commits; with 1 GB a commit of 3,900 rows has a p99 of 30 ms, not 1.2 s."""
MEMORY_LIMIT = "2GB"
"""DuckDB would take most of the machine; commits need little, and spill to disk beyond it."""
MAX_VACUUM_TASKS = 0
"""Merging half-empty row groups at a checkpoint costs more than the space is worth."""

_HOLDER = re.compile(r"Conflicting lock is held in (?P<program>.*?) \(PID (?P<process>\d+)\)")


def open_database(path: Path) -> duckdb.DuckDBPyConnection:
    """Open or create a store file; no other process can open it meanwhile.

    Raises:
        StoreInUseError: Another process has the file open; the message names it if known.
        StoreUnreadableError: The file cannot be read as a DuckDB database.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    try:
        return duckdb.connect(
            str(path),
            config={
                "checkpoint_threshold": CHECKPOINT_THRESHOLD,
                "max_vacuum_tasks": MAX_VACUUM_TASKS,
                "memory_limit": MEMORY_LIMIT,
                "preserve_insertion_order": True,
            },
        )
    except duckdb.Error as error:
        if is_new:
            # Half of a file that holds nothing yet: the next try starts afresh.
            path.unlink(missing_ok=True)
        raise _explained(path, error) from error


def _explained(path: Path, error: duckdb.Error) -> StoreInUseError | StoreUnreadableError:
    text = str(error)
    if "lock" in text.lower() and isinstance(error, duckdb.IOException):
        holder = _HOLDER.search(text)
        by = f"process {holder['process']} ({holder['program']})" if holder else "another process"
        return StoreInUseError(
            f"The store file {path} is owned by {by}.",
            why="One process at a time can open a store file, even to read it.",
            next_step="Query its export with `moescope sql --data …`, or stop that process.",
        )
    return StoreUnreadableError(
        f"The store file {path} cannot be opened.",
        why=text.splitlines()[0] if text else type(error).__name__,
        next_step="Free space if the disk is full. A damaged file: move it and its .wal aside; "
        "the owner rebuilds it from the batch logs that are still there.",
    )
