"""The declared tables and views, created in a real database."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from moescope.core.metrics import METRIC_NAMES
from moescope.core.tables import TABLE_BY_NAME, TABLES, VIEWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moescope.core.tables import Table, View


def create(table: Table) -> str:
    """CREATE TABLE, without constraints."""
    columns = ", ".join(f"{column.name} {column.type}" for column in table.columns)
    return f"CREATE TABLE {table.name} ({columns})"


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database with all tables and views."""
    with duckdb.connect() as connection:
        for table in TABLES:
            connection.execute(create(table))
        for view in VIEWS:
            connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
        yield connection


SERIES: dict[str, Any] = {
    "domain": "live", "model": "m", "revision": "r", "phase": "decode", "origin": "model",
    "scope_kind": "all", "scope_value": "", "window_kind": "time", "size": 1_000_000,
    "stride": 1_000_000, "request": "", "task": "", "fidelity": "full", "sampling_ratio": 1.0,
    "lane": "a", "experts": 4, "top_k": 1, "weight": 1.0, "level": "insufficient",
}  # fmt: skip


def insert(database: duckdb.DuckDBPyConnection, table: str, **values: object) -> None:
    """One row; columns that are not named are null."""
    marks = ", ".join("?" for _ in values)
    database.execute(
        f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})",
        list(values.values()),
    )


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_names_need_no_quotes_and_are_unique(table: Table) -> None:
    """Analysts type table and column names as they are."""
    assert len(set(table.column_names)) == len(table.columns)
    with duckdb.connect() as connection:
        connection.execute(create(table))
        connection.execute(f"SELECT {', '.join(table.column_names)} FROM {table.name}")
    for name in (table.name, *table.column_names):
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_key_and_time_columns_exist(table: Table) -> None:
    """A key or retention column that is misspelt would go unnoticed until it is needed."""
    assert set(table.key) <= set(table.column_names)
    types = {column.name: column.type for column in table.columns}
    nullable = {column.name for column in table.columns if column.nullable}
    assert not nullable & set(table.key)
    if table.time_column is not None:
        assert types[table.time_column] == "TIMESTAMP"


def test_windows_have_every_registered_metric() -> None:
    """A new metric reaches the table without a second declaration."""
    assert set(METRIC_NAMES) <= set(TABLE_BY_NAME["windows"].column_names)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_views_have_the_columns_they_document(
    view: View, database: duckdb.DuckDBPyConnection
) -> None:
    """The documentation of a view lists its columns in order."""
    found = [row[0] for row in database.execute(f"DESCRIBE {view.name}").fetchall()]
    documented = [name for name, _ in view.columns]
    assert found == (
        list(TABLE_BY_NAME["windows"].column_names) if documented == ["*"] else documented
    )


def test_hot_experts_counts_windows_in_a_row(database: duckdb.DuckDBPyConnection) -> None:
    """A streak grows while an expert stays above twice the mean, and starts again after."""
    loads = [[9, 1, 0, 0], [9, 1, 0, 0], [3, 3, 2, 2], [9, 1, 0, 0], [0, 0, 8, 2]]
    for second, counts in enumerate(loads):
        insert(database, "windows", **SERIES, layer=3, start=second * 1_000_000, counts=counts)
    rows = database.execute(
        "SELECT start / 1000000, expert, share, streak FROM hot_experts ORDER BY start"
    ).fetchall()
    assert rows == [(0, 0, 0.9, 1), (1, 0, 0.9, 2), (3, 0, 0.9, 1), (4, 2, 0.8, 1)]


def test_hot_experts_keeps_layers_apart(database: duckdb.DuckDBPyConnection) -> None:
    """The same expert id at another layer is another expert."""
    for layer, start in ((0, 0), (1, 1), (0, 2)):
        insert(database, "windows", **SERIES, layer=layer, start=start, counts=[9, 1, 0, 0])
    rows = database.execute(
        "SELECT layer, start, streak FROM hot_experts ORDER BY start"
    ).fetchall()
    assert rows == [(0, 0, 1), (1, 1, 1), (0, 2, 2)]


def test_exactly_twice_the_mean_is_not_hot(database: duckdb.DuckDBPyConnection) -> None:
    """The definition says above, not at."""
    insert(database, "windows", **SERIES, layer=0, start=0, counts=[5, 3, 1, 1])
    assert database.execute("SELECT * FROM hot_experts").fetchall() == []


def test_worst_windows_shows_one_layer_per_window(database: duckdb.DuckDBPyConnection) -> None:
    """A window appears once, at its worst layer, the worst window first."""
    for start, layer, distance in ((0, 0, 0.2), (0, 1, 0.4), (1, 0, 0.9), (1, 1, None)):
        insert(
            database, "windows", **SERIES, layer=layer, start=start, js_uniform=distance,
            js_uniform_floor=0.1,
        )  # fmt: skip
    rows = database.execute("SELECT start, layer, times_floor FROM worst_windows").fetchall()
    assert [(start, layer) for start, layer, _ in rows] == [(1, 0), (0, 1)]
    assert rows[0][2] == pytest.approx(9.0)


def test_layer_health_weighs_windows(database: duckdb.DuckDBPyConnection) -> None:
    """A row that stands for three windows counts three times, in shares and in means."""
    series = {name: value for name, value in SERIES.items() if name not in {"weight", "level"}}
    for weight, level, share in ((3.0, "healthy", 0.1), (1.0, "red", 0.5)):
        insert(
            database, "windows", **series, layer=0, start=0, weight=weight, level=level,
            hot_load_share=share,
        )  # fmt: skip
    row = database.execute(
        "SELECT windows, healthy, red, warn, hot_load_share, js_uniform FROM layer_health"
    ).fetchone()
    assert row == (4.0, 3.0, 1.0, 0.0, pytest.approx(0.2), None)


def test_coverage_is_unknown_when_a_gap_is(database: duckdb.DuckDBPyConnection) -> None:
    """A gap of unknown length never shows as good coverage, and layers are not counted twice."""
    insert(database, "lanes", lane="a", layers=[0, 1])
    for start, coverage, minute in ((0, 0.5, 0), (1, 0.5, 0), (2, None, 1)):
        for layer in (0, 1):
            insert(
                database, "windows", **SERIES, layer=layer, start=start, seen=1, expected=2,
                lost=1, complete=False, coverage=coverage,
                close_time=f"2026-01-01 00:{minute:02}:30",
            )  # fmt: skip
    rows = database.execute(
        "SELECT windows, seen, expected, unknown, coverage FROM coverage ORDER BY minute"
    ).fetchall()
    assert rows == [(2.0, 2, 4, 0, 0.5), (1.0, 1, 2, 1, None)]
