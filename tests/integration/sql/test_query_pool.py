from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from moescope.storage.query import (
    QueryFailedError,
    QueryMemoryError,
    QueryPool,
    QueryRefusedError,
    QuerySourceError,
    QueryTimeoutError,
    QueryTooLargeError,
)
from moescope.storage.query.sources import FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.sample_store import SampleStore

    from moescope.storage.export import Exporter

ENDLESS = "SELECT count(*) FROM range(1000000000000)"


@pytest.fixture
def exported(sample_store: SampleStore, exporter: Exporter) -> SampleStore:
    """A store with three windows, exported."""
    for start in (1, 2, 3):
        sample_store.add_window(start, commit_id=1, counts=[start, 2**64 - 1], level="red")
    exporter.export_tail()
    return sample_store


def test_a_new_commit_shows_in_a_warm_worker(
    exported: SampleStore, exporter: Exporter, open_pool: Callable[..., QueryPool]
) -> None:
    """A worker follows the manifest; the result says as of which commit and when."""
    pool = open_pool(exported.export)
    before = pool.run("SELECT count(*) FROM windows")
    exported.add_window(4, commit_id=2)
    exporter.export_tail()
    after = pool.run("SELECT count(*) FROM windows")
    assert (before.to_polars().item(), before.commit_id) == (3, 1)
    assert (after.to_polars().item(), after.commit_id) == (4, 2)
    assert after.as_of_us == 1_767_225_600_000_000


def test_a_large_result_is_cut_or_refused(
    exported: SampleStore, open_pool: Callable[..., QueryPool]
) -> None:
    """Rows and bytes have a cap: the result says that it was cut, or an error does."""
    pool = open_pool(exported.export, result_rows=1000, result_bytes=1 << 20)
    by_rows = pool.run("FROM range(5000)")
    assert (by_rows.rows, by_rows.truncated, by_rows.to_arrow().num_rows) == (1000, True, 1000)
    by_bytes = pool.run("SELECT repeat('x', 20000) FROM range(500)")
    assert by_bytes.truncated
    assert 0 < by_bytes.rows < 60
    assert len(by_bytes.arrow) <= (1 << 20) + 1024
    assert pool.run("FROM range(1000)").truncated is False
    with pytest.raises(QueryTooLargeError, match="1000"):
        pool.run("FROM range(5000)", on_overflow="error")
    assert pool.run("FROM range(50)", max_rows=7).rows == 7


def test_queries_run_beside_each_other(
    exported: SampleStore, open_pool: Callable[..., QueryPool]
) -> None:
    """Many threads share few workers, and each gets its own answer."""
    pool = open_pool(exported.export, workers=2)
    answers: dict[int, int] = {}

    def ask(number: int) -> None:
        frame = pool.run("SELECT $1 + count(*) FROM windows", [number]).to_polars()
        answers[number] = frame.item()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: number + 3 for number in range(20)}


def test_a_query_waits_for_a_worker_no_longer_than_a_query_may_run(
    exported: SampleStore, open_pool: Callable[..., QueryPool]
) -> None:
    """With every worker busy, the next query ends with an error that says so."""
    pool = open_pool(exported.export, timeout_seconds=1.0, grace_seconds=30.0)
    pool.run("SELECT 1")
    worker = worker_process()
    worker.suspend()  # a worker that does not even obey its own limits
    stuck = threading.Thread(target=swallow, args=(pool, "SELECT 1"))
    stuck.start()
    try:
        while pool.free_workers:
            time.sleep(0.01)
        with pytest.raises(QueryTimeoutError, match="No query worker"):
            pool.run("SELECT 1")
    finally:
        worker.kill()
        stuck.join()
    assert pool.run("SELECT 1").rows == 1


def test_a_worker_that_ignores_its_limits_is_killed(
    exported: SampleStore, open_pool: Callable[..., QueryPool]
) -> None:
    """The wall clock of the pool decides, even over a process that does not run at all."""
    pool = open_pool(exported.export, timeout_seconds=0.3, grace_seconds=0.2)
    pool.run("SELECT 1")
    worker = worker_process()
    worker.suspend()
    with pytest.raises(QueryTimeoutError, match="longer than"):
        pool.run("SELECT 1")
    assert not worker.is_running()
    assert pool.run("SELECT 1").rows == 1


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGXCPU, QueryTimeoutError),
        (signal.SIGKILL, QueryMemoryError),
        (signal.SIGSEGV, QueryFailedError),
    ],
)
def test_the_end_of_a_worker_is_explained(
    exported: SampleStore, open_pool: Callable[..., QueryPool], number: signal.Signals, error: type
) -> None:
    """A worker that the kernel ends gives a typed error, and the next query a fresh worker."""
    pool = open_pool(exported.export)
    pool.run("SELECT 1")
    worker = worker_process()
    threading.Timer(0.3, os.kill, [worker.pid, number]).start()
    with pytest.raises(error):
        pool.run(ENDLESS)
    assert pool.run("SELECT 1").rows == 1


def test_processor_time_is_limited_by_the_kernel(
    exported: SampleStore, open_pool: Callable[..., QueryPool]
) -> None:
    """Even when neither the database nor the pool stops a query, RLIMIT_CPU does."""
    pool = open_pool(exported.export, timeout_seconds=5.0)
    pool.run("SELECT 1")
    soft, _ = psutil.Process(worker_process().pid).rlimit(psutil.RLIMIT_CPU)
    assert 5 <= soft <= 5 + 2 + 30


def test_a_worker_is_replaced_after_enough_queries(
    exported: SampleStore, open_pool: Callable[..., QueryPool]
) -> None:
    """What leaks in a worker goes with it."""
    pool = open_pool(exported.export, queries_per_worker=2)
    pids = []
    for _ in range(4):
        pool.run("SELECT 1")
        pids.append({child.pid for child in psutil.Process().children()})
    assert not pids[0] & pids[3]


def test_closing_a_pool_ends_its_processes(
    exported: SampleStore, open_pool: Callable[..., QueryPool]
) -> None:
    """No worker outlives its pool, and a closed pool says that it is closed."""
    pool = open_pool(exported.export, workers=2)
    pool.run("SELECT 1")
    children = psutil.Process().children()
    pool.close()
    pool.close()
    assert not [child for child in children if child.is_running()]
    with pytest.raises(QuerySourceError, match="closed"):
        pool.run("SELECT 1")


def test_a_worker_sees_nothing_of_the_owner_environment(
    exported: SampleStore, open_pool: Callable[..., QueryPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens in the owner's environment and its open files do not reach a worker."""
    monkeypatch.setenv("MOESCOPE_SECRET_TOKEN", "hunter2")
    open_pool(exported.export).run("SELECT 1")
    worker = worker_process()
    assert "MOESCOPE_SECRET_TOKEN" not in worker.environ()
    assert not [file for file in worker.open_files() if file.path.endswith(".duckdb")]


def test_an_export_that_does_not_exist_yet_is_told(
    tmp_path: Path, open_pool: Callable[..., QueryPool]
) -> None:
    """Before the first export a query says what is missing."""
    with pytest.raises(QuerySourceError, match="Nothing was exported"):
        open_pool(tmp_path).run("SELECT 1")


def test_a_manifest_of_other_columns_is_told(
    exported: SampleStore, exporter: Exporter, open_pool: Callable[..., QueryPool]
) -> None:
    """A reader of another version gets a clear answer instead of wrong columns."""
    manifest = exporter.manifest
    assert manifest is not None
    manifest.columns = "other"
    manifest.publish(exported.export)
    with pytest.raises(QuerySourceError, match="other tables or columns"):
        open_pool(exported.export).run("SELECT 1")


def test_a_link_in_the_export_that_leads_out_is_refused(
    exported: SampleStore, tmp_path: Path, open_pool: Callable[..., QueryPool]
) -> None:
    """A planted link among the exported files is noticed before it is opened."""
    name = next(exported.export.glob("windows/*/hour-*.parquet"))
    target = tmp_path / "elsewhere.parquet"
    name.rename(target)
    name.symlink_to(target)
    with pytest.raises(QuerySourceError, match="outside of its folder"):
        open_pool(exported.export).run("SELECT 1")


def test_the_store_file_is_read_under_the_same_limits(
    exported: SampleStore, open_pool: Callable[..., QueryPool]
) -> None:
    """Without an owner the file itself answers, read-only, and only it can be read."""
    exported.connection.close()
    file = exported.directory / "moescope.duckdb"
    pool = open_pool(file, kind=FILE)
    assert pool.run("SELECT count(*) FROM red_windows").to_polars().item() == 3
    for refused in (
        "DELETE FROM windows",
        "WITH a AS (DELETE FROM windows RETURNING *) FROM a",
        "FROM read_text('/etc/passwd')",
        f"FROM read_blob('{file}')",
        "CREATE TEMP TABLE a (b INTEGER)",
        f"COPY windows TO '{exported.directory}/new.parquet'",
    ):
        with pytest.raises(QueryRefusedError):
            pool.run(refused)
    with pytest.raises(QueryMemoryError):
        pool.run("SELECT length(repeat('x', 1500000000))")
    assert not (exported.directory / "new.parquet").exists()


def test_each_layer_alone_keeps_files_from_being_written(exported: SampleStore) -> None:
    """Without the statement check, the process's own limits still let nothing be written."""
    script = (
        "import sys, duckdb\n"
        "from pathlib import Path\n"
        "from moescope.storage.query.limits import QueryLimits, forbid_writing\n"
        "from moescope.storage.query.sources import ExportSource\n"
        "forbid_writing()\n"
        "source = ExportSource(Path(sys.argv[1]), QueryLimits())\n"
        "with source.connection() as (connection, _):\n"
        "    for sql in sys.argv[2:]:\n"
        "        try:\n"
        "            connection.execute(sql)\n"
        "            print('done')\n"
        "        except duckdb.Error as error:\n"
        "            print(type(error).__name__)\n"
    )
    before = sorted(exported.export.rglob("*"))
    finished = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            str(exported.export),
            f"COPY (SELECT 1) TO '{exported.export}/new.csv'",
            f"COPY (SELECT range FROM range(100000)) TO '{exported.export}/new.parquet'",
            f"COPY (SELECT 1) TO '{exported.directory}/new.csv'",
            f"ATTACH '{exported.export}/new.duckdb'",
            "SET enable_external_access = true",
            "FROM read_text('/etc/passwd')",
            "INSTALL httpfs",
            "LOAD httpfs",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    answers = finished.stdout.split()
    assert len(answers) == 8
    assert "done" not in answers
    sizes = [path.stat().st_size for path in exported.export.rglob("new.*")]
    assert sum(sizes) == 0
    assert [
        path for path in sorted(exported.export.rglob("*")) if "new." not in path.name
    ] == before


def worker_process() -> psutil.Process:
    """The one worker of the one pool."""
    (worker,) = psutil.Process().children()
    return worker


def swallow(pool: QueryPool, query: str) -> None:
    """Run a query whose worker is going to be killed."""
    with pytest.raises(QueryMemoryError):
        pool.run(query)
