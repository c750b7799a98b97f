from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.sample_store import SampleStore

from moescope.core.clock import ManualClock
from moescope.storage.export import Exporter
from moescope.storage.query import (
    QueryFailedError,
    QueryLimits,
    QueryMemoryError,
    QueryPool,
    QueryRefusedError,
    QueryTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# {folder} is the export folder, {outside} a folder beside it that holds secret.csv.
WRITES = (
    "COPY (SELECT 1) TO '{outside}/new.csv'",
    "COPY (SELECT 1) TO '{folder}/new.parquet' (FORMAT parquet)",
    "COPY windows TO '{folder}/../new.parquet'",
    "COPY (SELECT 1) TO '/dev/shm/moescope-hostile'",
    "EXPORT DATABASE '{outside}/dump'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{outside}/new.csv'",
    "EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO '{folder}/new.csv'",
    "EXPLAIN /* (analyze */ ANALYZE -- ä\n COPY (SELECT 1) TO '{outside}/new.csv'",
    "PREPARE p AS COPY (SELECT 1) TO '{outside}/new.csv'",
    "ATTACH '{outside}/new.duckdb'",
    "ATTACH '{folder}/new.duckdb' AS other",
    "INSERT INTO windows SELECT * FROM windows",
    "WITH gone AS (DELETE FROM windows RETURNING *) SELECT * FROM gone",
    "WITH more AS (INSERT INTO lanes SELECT * FROM lanes RETURNING *) SELECT * FROM more",
    "SELECT * FROM (WITH w AS (UPDATE windows SET tokens = 0 RETURNING *) FROM w)",
    "UPDATE windows SET tokens = 0",
    "DELETE FROM windows",
    "MERGE INTO windows USING lanes ON true WHEN MATCHED THEN DELETE",
    "TRUNCATE windows",
    "CREATE TABLE mine AS SELECT 1",
    "CREATE TEMP TABLE mine (a INTEGER)",
    "CREATE OR REPLACE VIEW windows AS SELECT 1",
    "CREATE MACRO mine(a) AS a",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "CREATE SEQUENCE mine",
    "CREATE TYPE mine AS ENUM ('a')",
    "DROP VIEW windows",
    "ALTER VIEW windows RENAME TO mine",
    "COMMENT ON VIEW windows IS 'mine'",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "ANALYZE",
)
READS = (
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('{outside}/secret.csv')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "FROM '{outside}/secret.csv'",
    'FROM "{outside}/secret.csv"',
    "DESCRIBE '{outside}/secret.csv'",
    "SUMMARIZE '{outside}/secret.csv'",
    "FROM read_json('{outside}/secret.csv')",
    "FROM read_parquet('{outside}/*.parquet')",
    "FROM read_parquet('{folder}/../../**/*.parquet')",
    "FROM '{folder}/../secret.csv'",
    "FROM read_text('{folder}/link/secret.csv')",
    "FROM '{folder}/link/secret.csv'",
    "FROM read_text('{folder}/manifest.json')",
    "FROM read_duckdb('{outside}/any.duckdb')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT (SELECT content FROM read_text('/etc/hostname'))",
    "SELECT EXISTS (FROM read_text('/etc/passwd'))",
    "EXPLAIN SELECT * FROM read_csv('{outside}/secret.csv')",
    "DESCRIBE SELECT * FROM read_csv('{outside}/secret.csv')",
    "WITH a AS (FROM sniff_csv('{outside}/secret.csv')) FROM a",
    "FROM parquet_metadata('{outside}/any.parquet')",
    "FROM read_text('/proc/self/environ')",
    "FROM read_text('/dev/stdin')",
    "FROM read_csv('https://example.invalid/a.csv')",
    "FROM 's3://bucket/a.parquet'",
    "FROM query('COPY (SELECT 1) TO ''{outside}/new.csv''')",
    "FROM query('FROM read_text(''/etc/passwd'')')",
    "FROM query_table('{outside}/secret.csv')",
    "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT getenv('PATH')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM which_secret('s3://a', 's3')",
    "SELECT * FROM duckdb_settings()",
    "FROM arrow_scan(1, 2, 3)",
    "FROM pandas_scan(1)",
    "FROM python_map_function(1)",
    "FROM sys",
)
STATE = (
    "INSTALL httpfs",
    "LOAD httpfs",
    "FORCE INSTALL spatial FROM community",
    "SET lock_configuration = false",
    "SET enable_external_access = true",
    "SET GLOBAL memory_limit = '100GB'",
    "SET allowed_directories = ['/']",
    "SET SESSION threads = 64",
    "SET VARIABLE a = 1",
    "RESET memory_limit",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "PRAGMA threads = 64",
    "IMPORT DATABASE '{outside}'",
    "CALL pragma_version()",
    "CALL enable_logging(storage = 'file', storage_path = '{outside}/log')",
    "FROM enable_logging('QueryLog', storage = 'file', storage_path = '{outside}/log')",
    "FROM checkpoint()",
    "FROM force_checkpoint()",
    "FROM add_grammar_extension('a')",
    "USE memory",
    "DETACH memory",
    "BEGIN",
    "ROLLBACK",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO '{outside}/new.csv'",
    "ROLLBACK; CREATE TABLE mine (a INTEGER)",
    "",
    ";",
    "-- nothing",
    "EXPLAIN",
    "EXPLAIN ANALYZE EXPLAIN ANALYZE COPY (SELECT 1) TO '{outside}/new.csv'",
    "SELECT length(repeat(repeat('x', 1000000), 1000000))",
    "SELEC 1",
    "SELECT '\ud800'",
    "SELECT \x00",
    "SELECT 'x' || \x00 -- '",
    "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "SELECT " + "1+" * 60_000 + "1",
    "SELECT " + ",".join(["1"] * 200_000),
    "SELECT no_such_column FROM windows",
)
MEMORY = (
    "SELECT length(repeat('x', 1500000000))",
    "SELECT range(500000000)",
    "SELECT length(string_agg(repeat('x', 10000000), '')) FROM range(1000)",
    "SELECT list(a) FROM range(1000000000) t(a)",
    "SELECT a, b FROM range(100000) t(a), range(100000) u(b) ORDER BY random()",
    "SELECT regexp_replace(repeat('a', 30000), '(a*)*b', '') FROM range(100000000)",
    "SELECT length(rpad('x', 2000000000, 'y'))",
)
TIME = (
    "SELECT count(*) FROM range(100000000000)",
    "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3",
    "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n FROM t) SELECT count(*) FROM t",
    "EXPLAIN ANALYZE SELECT count(*) FROM range(100000000000)",
)


class Fortress:
    """A pool over a small export, with things around it that must stay as they are."""

    def __init__(self, folder: Path, outside: Path, pool: QueryPool) -> None:
        self.folder = folder
        self.outside = outside
        self.pool = pool

    def query(self, text: str) -> object:
        """Run a hostile text with its places filled in."""
        filled = text.replace("{folder}", str(self.folder)).replace("{outside}", str(self.outside))
        return self.pool.run(filled)

    def snapshot(self) -> set[tuple[str, int, int]]:
        """Every file in and around the export: path, size, time of change."""
        return {
            (str(path), path.lstat().st_size, path.lstat().st_mtime_ns)
            for path in self.outside.rglob("*")
        }


@pytest.fixture(scope="module")
def fortress(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fortress]:
    """One pool for the whole module: no hostile query may harm the next one."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.csv").write_text("secret\nx\n", encoding="ascii")
    store = SampleStore.create(outside)
    store.add_window(0, commit_id=1)
    Exporter(store.connection, store.export, ManualClock()).export_tail()
    (store.export / "link").symlink_to(outside, target_is_directory=True)
    limits = QueryLimits(timeout_seconds=1.5, memory_bytes=400 << 20, threads=1)
    with QueryPool(store.export, 1, limits) as pool:
        yield Fortress(store.export, outside, pool)
    store.connection.close()


@pytest.fixture(autouse=True)
def nothing_changes(fortress: Fortress) -> Iterator[None]:
    """After each test: the same files as before, and a good query works at once."""
    before = fortress.snapshot()
    yield
    assert fortress.snapshot() == before
    assert fortress.pool.run("SELECT sum(tokens) AS n FROM windows").to_polars()["n"].to_list() == [
        3
    ]
    assert not Path("/dev/shm/moescope-hostile").exists()  # noqa: S108 (must not exist)


@pytest.mark.parametrize("text", WRITES)
def test_what_writes_is_refused_by_its_kind(fortress: Fortress, text: str) -> None:
    """Statements that write are told apart by the parser, before anything runs."""
    with pytest.raises(QueryRefusedError):
        fortress.query(text)


@pytest.mark.parametrize("text", READS)
def test_nothing_outside_of_the_tables_can_be_read(fortress: Fortress, text: str) -> None:
    """No file, secret, setting or address of the machine can be reached by a SELECT."""
    with pytest.raises((QueryRefusedError, QueryFailedError)):
        fortress.query(text)


@pytest.mark.parametrize("text", STATE, ids=lambda text: repr(text[:40]))
def test_a_worker_has_no_state_to_change(fortress: Fortress, text: str) -> None:
    """Settings, sessions, several statements and damaged texts are refused."""
    with pytest.raises((QueryRefusedError, QueryFailedError)):
        fortress.query(text)


@pytest.mark.parametrize("text", MEMORY)
def test_memory_bombs_end_at_the_limit(fortress: Fortress, text: str) -> None:
    """A query that wants too much memory ends with an error that says so, or in time."""
    with pytest.raises((QueryMemoryError, QueryTimeoutError)):
        fortress.query(text)


@pytest.mark.parametrize("text", TIME)
def test_endless_queries_end_at_the_limit(fortress: Fortress, text: str) -> None:
    """A query that never ends is ended, and says so."""
    with pytest.raises(QueryTimeoutError):
        fortress.query(text)


def test_the_owner_keeps_its_own_limits(fortress: Fortress) -> None:
    """The limits tie the worker alone: this process still writes files."""
    with pytest.raises(QueryMemoryError):
        fortress.query(MEMORY[0])
    probe = fortress.outside.parent / "owner-writes"
    probe.write_bytes(b"x" * 4096)
    assert probe.stat().st_size == 4096
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
