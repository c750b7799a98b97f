from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from moescope.core.clock import SystemClock
from moescope.core.tables import TABLE_BY_NAME
from moescope.storage.export import Exporter, read_manifest
from moescope.storage.export.views import select_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.sample_store import SampleStore

    from moescope.storage.query import QueryPool

KILLS = 8

# An owner that commits one window and one batch per commit, and exports all the time.
OWNER = """
import sys
from pathlib import Path
import duckdb
from moescope.core.clock import SystemClock
from moescope.storage.export import Exporter

file, folder = sys.argv[1:]
connection = duckdb.connect(file)
exporter = Exporter(connection, Path(folder), SystemClock(), grace_seconds=0.5)
insert = (
    "INSERT INTO {0} SELECT * REPLACE ({2} AS {1}, {2} AS commit_id)"
    " FROM {0} WHERE commit_id = 1"
)
commit_id = connection.execute("SELECT max(commit_id) FROM windows").fetchone()[0]
while True:
    commit_id += 1
    connection.execute("BEGIN")
    connection.execute(insert.format("windows", "start", commit_id))
    connection.execute(insert.format("batches", "log_offset", commit_id))
    connection.execute("COMMIT")
    if commit_id % 11 == 0:
        exporter.compact("hour")
    elif commit_id % 4 == 0:
        exporter.compact("minute")
    else:
        exporter.export_tail()
    print(commit_id, flush=True)
"""


def starts(folder: Path) -> tuple[list[int], list[int], int]:
    """Sorted windows and batches that a reader sees, and the manifest's commit."""
    manifest = read_manifest(folder)
    assert manifest is not None
    columns = {"windows": "start", "batches": "log_offset"}
    seen = []
    for table, column in columns.items():
        source = select_table(TABLE_BY_NAME[table], manifest.tables[table], folder)
        rows = duckdb.execute(f"SELECT {column} FROM ({source}) ORDER BY 1").fetchall()
        seen.append([row[0] for row in rows])
    return seen[0], seen[1], manifest.commit_id


def test_an_exporter_that_is_killed_leaves_a_consistent_set(sample_store: SampleStore) -> None:
    """After kill -9 at random moments readers find a whole commit, nothing lost or doubled."""
    sample_store.add_window(1, commit_id=1)
    sample_store.add("batches", log_offset=1, commit_id=1)
    sample_store.connection.close()
    file = sample_store.directory / "moescope.duckdb"
    chance = random.Random(20260101)
    reached = 1
    for _ in range(KILLS):
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(file), str(sample_store.export)],
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": ":".join(sys.path)},
        )
        assert owner.stdout is not None
        for _ in range(chance.randint(1, 6)):
            reached = int(owner.stdout.readline())
        timer = threading.Timer(chance.uniform(0.0, 0.15), owner.send_signal, [signal.SIGKILL])
        timer.start()
        owner.wait()
        timer.join()
        owner.stdout.close()
        windows, batches, commit_id = starts(sample_store.export)
        assert windows == batches == list(range(1, commit_id + 1))
        assert commit_id >= reached
    connection = duckdb.connect(str(file))
    committed = connection.execute("SELECT start FROM windows ORDER BY 1").fetchall()
    exporter = Exporter(connection, sample_store.export, SystemClock(), grace_seconds=0.0)
    exporter.export_tail()
    windows, batches, _ = starts(sample_store.export)
    assert windows == batches == [row[0] for row in committed]
    manifest = exporter.manifest
    assert manifest is not None
    present = {
        path.relative_to(sample_store.export).as_posix()
        for path in sample_store.export.rglob("*.parquet")
    }
    assert present == manifest.paths()
    connection.close()


def test_readers_see_whole_commits_beside_a_writer(
    sample_store: SampleStore, open_pool: Callable[..., QueryPool]
) -> None:
    """Two tables written in one commit never disagree in a query, while all of it changes."""
    sample_store.add_window(0, commit_id=0)
    sample_store.add("batches", commit_id=0)
    exporter = Exporter(sample_store.connection, sample_store.export, SystemClock())
    exporter.export_tail()
    writer = sample_store.connection.cursor()

    def write(commit_id: int) -> None:
        writer.execute("BEGIN")
        for table in ("windows", "batches"):
            writer.execute(
                f"INSERT INTO {table} SELECT {table}.* REPLACE ($1 AS commit_id)"
                f" FROM {table}, range(50) WHERE commit_id = 0",
                [commit_id],
            )
        writer.execute("COMMIT")

    def export(number: int) -> None:
        if number % 5 == 0:
            exporter.compact("minute")
        else:
            exporter.export_tail()

    pool = open_pool(sample_store.export, workers=2)
    seen: list[int] = []
    with running(write), running(export):
        while len(set(seen)) < 6:
            result = pool.run(
                "SELECT (SELECT count(*) FROM windows) AS w, (SELECT count(*) FROM batches) AS b,"
                " (SELECT max(commit_id) FROM windows) AS c"
            )
            windows, batches, newest = result.to_polars().row(0)
            assert windows == batches == 1 + 50 * newest
            assert newest == result.commit_id
            seen.append(newest)
    assert seen == sorted(seen)


@contextmanager
def running(step: Callable[[int], None]) -> Iterator[None]:
    """Repeat a step with 1, 2, 3 … in a thread; its error is raised at the end."""
    stop = threading.Event()

    def loop() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            step(number)

    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(loop)
        try:
            yield
        finally:
            stop.set()
        future.result()
