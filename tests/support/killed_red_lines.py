"""Red lines in a real store, committed by a process that is killed.

As a program: `killed_red_lines.py STORE_FILE COMMITS`: applies what is not stored yet, prints a
line per commit, and waits to be killed after that many.
"""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.outbox_store import open_store
from support.red_line_store import (
    START_US,
    Arrival,
    arrivals,
    book_of,
    final_us,
    rule,
    version,
    write_exceedances,
)

from moescope.core.clock import ManualClock
from moescope.jobs.alerts import RedLines

if TYPE_CHECKING:
    import duckdb

    from moescope.storage import Store

BOOK = book_of(version("t-1", rule(), rule(family="router", needed=3, of=5)))
TABLES = ("alerts", "alert_events", "outbox")


def commits() -> list[tuple[list[Arrival], int]]:
    """Exceedances of two families in commits of three, and how far each commit is."""
    found = sorted(
        (
            *arrivals("..oo" + "." * 7 + "oo" + "_" * 12 + "o"),
            *arrivals(".ooooo.......", family="router"),
        ),
        key=lambda each: each.reached_us,
    )
    parts = [found[first : first + 3] for first in range(0, len(found), 3)]
    return [*((part, part[-1].reached_us) for part in parts), ([], final_us(60))]


def apply(store: Store, *, at_most: int = 10**6) -> int:
    """Apply the commits that the store lacks, with red lines of a new process."""
    hook = RedLines(BOOK, ManualClock(START_US), ("log",), no_data_after_us=25_000_000)
    done = 0
    for arrived, reached_us in commits()[stored(store) :]:
        if done == at_most:
            break

        def change(
            connection: duckdb.DuckDBPyConnection,
            commit_id: int,
            arrived: list[Arrival] = arrived,
            reached_us: int = reached_us,
        ) -> None:
            facts = write_exceedances(connection, arrived, {"live": reached_us}, commit_id)
            hook.committing(connection, facts)

        store.change(change, author="test", action="commit")
        done += 1
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()
    return done


def stored(store: Store) -> int:
    """Commits that the store has: each wrote one row of `audit`."""
    with closing(store.cursor()) as cursor:
        row = cursor.execute("SELECT count(*) FROM audit").fetchone()
    return int(row[0]) if row else 0


def tables(store: Store) -> dict[str, list[Any]]:
    """What red lines wrote, without commit numbers."""
    with closing(store.cursor()) as cursor:
        return {
            name: sorted(
                cursor.execute(f"SELECT * EXCLUDE commit_id FROM {name}").fetchall(),
                key=repr,
            )
            for name in TABLES
        }


if __name__ == "__main__":
    with open_store(Path(sys.argv[1])) as opened:
        apply(opened, at_most=int(sys.argv[2]))
        threading.Event().wait()
