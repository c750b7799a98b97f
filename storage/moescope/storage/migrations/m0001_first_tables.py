"""The first tables.

Nothing has been released yet, so they are created as declared. With the first migration after
this one, the statements have to be written out here as they are then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.tables import TABLES

if TYPE_CHECKING:
    import duckdb

    from moescope.core.tables import Table


def create_statement(table: Table) -> str:
    """CREATE TABLE of a declared table."""
    parts = [
        f"{column.name} {column.type}{'' if column.nullable else ' NOT NULL'}"
        for column in table.columns
    ]
    if table.indexed:
        parts.append(f"PRIMARY KEY ({', '.join(table.key)})")
    return f"CREATE TABLE {table.name} ({', '.join(parts)})"


def apply(connection: duckdb.DuckDBPyConnection) -> None:
    """Create all tables."""
    for table in TABLES:
        connection.execute(create_statement(table))
