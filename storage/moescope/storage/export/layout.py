"""How a table is laid out in the export: folders, columns, and the SQL that says so."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import duckdb

from moescope.core.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.core.tables import Table

COMMIT_COLUMN: Final = "commit_id"
ROW_KEY_COLUMN: Final = "row_key"
"""Hash of a row's key; only in files of tables whose exported rows can be replaced."""

REMOVALS_TABLE: Final = "removed_rows"
WHOLE: Final = "all"
"""The one partition of a table that stays small."""

UNDATED: Final = "none"
"""Partition of rows without a time, and of the empty file that shows a table's columns."""


_HOUR_FORMAT: Final = "%Y-%m-%dT%H"


def exported_tables() -> tuple[Table, ...]:
    """The tables that queries show."""
    return tuple(table for table in TABLES if table.exported)


def is_partitioned(table: Table) -> bool:
    """Whether the table grows without bound, and so is exported piece by piece."""
    return table.time_column is not None and COMMIT_COLUMN in table.column_names


def has_row_key(table: Table) -> bool:
    """Whether files of the table may hold two versions of one row."""
    return is_partitioned(table) and table.revised


def partition_expression(table: Table) -> str:
    """SQL for the name of a row's partition: the hour of its time (UTC)."""
    return partition_name(table.time_column if is_partitioned(table) else None)


def partition_name(time: str | None) -> str:
    """SQL for the name of the partition that a time falls into; None: there is one only."""
    return f"coalesce(strftime({time}, '{_HOUR_FORMAT}'), '{UNDATED}')" if time else f"'{WHOLE}'"


def partition_condition(table: Table, names: Sequence[str]) -> str:
    """SQL that is true for the rows of these partitions, and lets the store skip others."""
    if not is_partitioned(table):
        return "true"
    hours = sorted(name for name in names if name != UNDATED)
    parts = [f"{table.time_column} IS NULL"] if UNDATED in names else []
    if hours:
        times = [f"TIMESTAMP '{hour.replace('T', ' ')}:00:00'" for hour in hours]
        parts.append(
            f"({table.time_column} >= {times[0]}"
            f" AND {table.time_column} < {times[-1]} + INTERVAL 1 HOUR"
            f" AND date_trunc('hour', {table.time_column}) IN ({', '.join(times)}))"
        )
    return f"({' OR '.join(parts)})" if parts else "false"


def partition_folder(partition: str) -> str:
    """Hive-style folder of a partition."""
    return f"hour={partition}"


def file_expressions(table: Table) -> str:
    """SQL for the columns of a file: the declared ones, and the row's key where it is needed."""
    names = ", ".join(quoted(name) for name in table.column_names)
    return f"{names}, {row_key_expression(table)}" if has_row_key(table) else names


def row_key_expression(table: Table) -> str:
    """SQL for the hash that identifies a row within its table."""
    keys = ", ".join(quoted(name) for name in table.key)
    return f"hash({keys}) AS {ROW_KEY_COLUMN}"


def layout_fingerprint(tables: Sequence[Table]) -> str:
    """Changes whenever files that were written before can no longer be mixed with new ones.

    It covers names, columns and types, and DuckDB's version, because `hash()` may change with it.
    """
    text = [duckdb.__version__]
    for table in tables:
        text.append(f"{table.name}({','.join(table.key)}){table.time_column}{table.revised}")
        text.extend(f"{column.name} {column.type}" for column in table.columns)
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]


def columns_fingerprint(tables: Sequence[Table]) -> str:
    """Changes whenever a reader would see other tables or columns."""
    text = [
        f"{table.name}({','.join(f'{column.name} {column.type}' for column in table.columns)})"
        for table in tables
    ]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
