"""Rows of declared tables in an empty database, with plain values where a test gives none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb

from moescope.core.tables import TABLE_BY_NAME, TABLES
from moescope.storage.columns import insert, records
from moescope.storage.migrations.m0001_first_tables import create_statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PLAIN: dict[str, Any] = {
    "VARCHAR": "",
    "BIGINT": 0,
    "UBIGINT": 0,
    "INTEGER": 0,
    "DOUBLE": 0.0,
    "BOOLEAN": True,
    "TIMESTAMP": 0,
    "BLOB": b"",
}


def empty_database() -> duckdb.DuckDBPyConnection:
    """All declared tables, in memory."""
    connection = duckdb.connect()
    for table in TABLES:
        connection.execute(create_statement(table))
    return connection


def add_rows(
    connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert rows; TIMESTAMPs in µs. Columns that a row leaves out are null, 0 or empty."""
    plain = {
        column.name: None
        if column.nullable
        else ([] if column.type.endswith("[]") else _PLAIN[column.type])
        for column in TABLE_BY_NAME[table].columns
    }
    insert(connection, table, records(table, [{**plain, **row} for row in rows]))
