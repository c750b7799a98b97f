"""Rows of the tables that people and jobs write: in, replaced, and thresholds read back.

To be used inside `Store.change`, which signs and numbers the transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from moescope.core.errors import InternalError
from moescope.core.tables import TABLE_BY_NAME
from moescope.storage.columns import ARROW_TYPES, insert, timestamps
from moescope.storage.export.layout import COMMIT_COLUMN
from moescope.storage.removals import remove_rows
from moescope.storage.threshold_rows import load_book, read_activations, read_versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb

    from moescope.core.table_types import Column

__all__ = [
    "insert_rows",
    "load_book",
    "next_number",
    "read_activations",
    "read_versions",
    "replace_rows",
]

_REPLACED = "replaced_rows"


def insert_rows(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    rows: Sequence[Mapping[str, Any]],
    commit_id: int,
) -> None:
    """Insert rows given by column name.

    Args:
        connection: Inside the transaction.
        table: A declared table.
        rows: Values by column; TIMESTAMPs in µs since the epoch. Columns that may be null can be
            left out, and NaN stands for null there; `commit_id` is filled in.
        commit_id: Number of the transaction.

    Raises:
        InternalError: A row has a column that is not declared, or lacks one.
    """
    insert(connection, table, _arrow(table, rows, commit_id))


def replace_rows(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    rows: Sequence[Mapping[str, Any]],
    commit_id: int,
) -> None:
    """Insert rows in place of those with the same key; the export follows.

    Args:
        connection: Inside the transaction.
        table: A declared table with a key.
        rows: As for `insert_rows`; no two with the same key.
        commit_id: Number of the transaction.

    Raises:
        InternalError: A row has a column that is not declared, or lacks one.
    """
    if not rows:
        return
    incoming = _arrow(table, rows, commit_id)
    key = list(TABLE_BY_NAME[table].key)
    connection.complete()
    connection.register(_REPLACED, incoming.select(key))
    same = " AND ".join(f"t.{name} = i.{name}" for name in key)
    found = f"rowid IN (SELECT t.rowid FROM {table} t JOIN {_REPLACED} i ON {same})"
    remove_rows(connection, table, found, commit_id)
    connection.unregister(_REPLACED)
    insert(connection, table, incoming)


def next_number(connection: duckdb.DuckDBPyConnection, table: str, column: str) -> int:
    """The number that follows the greatest one stored; 1 in an empty table.

    Of text columns, such as `threshold_versions.version`, it is the number at the end.
    """
    (declared,) = (each for each in TABLE_BY_NAME[table].columns if each.name == column)
    number = column
    if declared.type == "VARCHAR":
        number = f"try_cast(regexp_extract({column}, '[0-9]+$') AS BIGINT)"
    row = connection.execute(f"SELECT coalesce(max({number}), 0) + 1 FROM {table}").fetchone()
    return int(row[0]) if row else 1


def _arrow(table: str, rows: Sequence[Mapping[str, Any]], commit_id: int) -> pa.Table:
    columns = TABLE_BY_NAME[table].columns
    names = {column.name for column in columns}
    required = {column.name for column in columns if not column.nullable} - {COMMIT_COLUMN}
    for row in rows:
        if unknown := row.keys() - names:
            raise _misfit(table, f"It has no column {', '.join(sorted(unknown))}.")
        if missing := required - row.keys():
            raise _misfit(table, f"The row lacks {', '.join(sorted(missing))}.")
    return pa.table(
        {
            column.name: pa.array([commit_id] * len(rows), pa.int64())
            if column.name == COMMIT_COLUMN
            else _column(column, [row.get(column.name) for row in rows])
            for column in columns
        }
    )


def _column(column: Column, values: list[Any]) -> pa.Array:
    if column.type == "TIMESTAMP":
        return timestamps(values)
    return pa.array(values, ARROW_TYPES[column.type], from_pandas=column.nullable)


def _misfit(table: str, why: str) -> InternalError:
    return InternalError(
        f"A row does not fit the table {table}.",
        why=why,
        next_step="Report it, with the message above.",
    )
