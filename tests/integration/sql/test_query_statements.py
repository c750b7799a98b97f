from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.sample_store import SampleStore

from moescope.core.clock import ManualClock
from moescope.storage.export import Exporter
from moescope.storage.query import QueryFailedError, QueryPool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def pool(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[QueryPool]:
    """One worker over three exported windows: nothing here changes it."""
    store = SampleStore.create(tmp_path_factory.mktemp("statements"))
    for start in (1, 2, 3):
        store.add_window(start, commit_id=1, counts=[start, 2**64 - 1], level="red")
    Exporter(store.connection, store.export, ManualClock()).export_tail()
    store.connection.close()
    with QueryPool(store.export, workers=1) as opened:
        yield opened


def test_rows_arrive_with_their_types(pool: QueryPool) -> None:
    """Lists, large unsigned numbers, times and text survive the way through Arrow."""
    frame = pool.run(
        "SELECT start, counts, close_time, level, sum(start) OVER () AS total,"
        " INTERVAL 3 DAYS AS gap FROM windows ORDER BY start"
    ).to_polars()
    assert frame["counts"].to_list() == [[n, 2**64 - 1] for n in (1, 2, 3)]
    assert frame["total"].to_list() == [6, 6, 6]
    assert str(frame["close_time"][0]) == "2026-01-01 00:00:01"
    assert frame["gap"].to_list() == ["3 days"] * 3


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("SELECT count(*) FROM windows WHERE start >= $1 AND level = $2", [2, "red"]),
        ("SELECT count(*) FROM windows WHERE start >= ? AND level = ?", (2, "red")),
        ("SELECT count(*) FROM windows WHERE start >= $low", {"low": 2}),
        ("SELECT count(*) FROM windows WHERE list_contains($1, start)", [[2, 3]]),
    ],
)
def test_parameters_are_values(
    pool: QueryPool,
    query: str,
    parameters: list[object] | tuple[object, ...] | dict[str, object],
) -> None:
    """Numbered, positional and named parameters reach the query."""
    assert pool.run(query, parameters).to_polars().item() == 2


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM red_windows",
        "FROM layer_health",
        "FROM hot_experts LIMIT 1",
        "WITH a AS (FROM windows) SELECT * FROM a -- done",
        "VALUES (1), (2);",
        "TABLE windows",
        "SHOW TABLES",
        "SHOW ALL TABLES",
        "DESCRIBE windows",
        "DESCRIBE SELECT 1",
        "SUMMARIZE windows",
        "EXPLAIN SELECT * FROM windows",
        "EXPLAIN ANALYZE SELECT count(*) FROM windows",
        "EXPLAIN (FORMAT json) SELECT 1",
        "/* ä */ EXPLAIN /* ö */ ANALYZE (SELECT 1)",
        "SELECT unnest(counts) FROM windows UNION ALL SELECT 1",
        "PIVOT windows ON level IN ('red') USING sum(tokens)",
        "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 5) FROM t",
        "SELECT * FROM duckdb_columns() WHERE table_name = 'windows'",
        "SELECT 'COPY; DROP TABLE x' AS \"attach 'a'\"",
        "SELECT 1 AS a, 2 AS a",
        "SELECT 1 WHERE false",
        'SELECT INTERVAL 1 DAY AS "a""b", 1 AS "a""b"',
    ],
)
def test_what_only_reads_is_answered(pool: QueryPool, query: str) -> None:
    """Each kind of statement that only reads returns an Arrow stream with columns."""
    result = pool.run(query)
    assert result.to_arrow().num_rows == result.rows
    assert result.to_arrow().num_columns > 0


def test_errors_of_the_query_carry_the_database_message(pool: QueryPool) -> None:
    """A wrong column name is told, with what DuckDB proposes instead."""
    with pytest.raises(QueryFailedError, match=r"(?s)no_such.*windows|no_such"):
        pool.run("SELECT no_such FROM windows")
