"""A store in a plain DuckDB file with the declared tables, written row by row.

The owner's store decides what a commit writes; here the test does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import duckdb

from moescope.core.clock import ManualClock
from moescope.core.tables import TABLE_BY_NAME
from moescope.storage.places import export_folder, store_file
from moescope.storage.removals import remove_rows
from moescope.storage.schema import migrate

if TYPE_CHECKING:
    from pathlib import Path

MIDNIGHT = datetime(2026, 1, 1)  # noqa: DTZ001 (columns are UTC without a zone)
MIDNIGHT_US = 1_767_225_600_000_000
DEFAULTS: dict[str, object] = {
    "VARCHAR": "",
    "BIGINT": 0,
    "UBIGINT": 0,
    "INTEGER": 0,
    "DOUBLE": 0.0,
    "BOOLEAN": True,
    "BLOB": b"",
    "TIMESTAMP": MIDNIGHT,
}


@dataclass
class SampleStore:
    """A data directory whose store file is written with plain SQL."""

    directory: Path
    connection: duckdb.DuckDBPyConnection

    @classmethod
    def create(cls, directory: Path) -> SampleStore:
        """Make the file with every declared table and view."""
        connection = duckdb.connect(str(store_file(directory)))
        migrate(connection, ManualClock())
        return cls(directory, connection)

    @property
    def export(self) -> Path:
        """The export folder."""
        return export_folder(self.directory)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own."""
        return self.connection.cursor()

    def add(self, table: str, **values: object) -> None:
        """Insert one row; columns that are not named hold a default."""
        columns = TABLE_BY_NAME[table].columns
        row: list[Any] = [
            values.pop(column.name, None if column.nullable else _default(column.type))
            for column in columns
        ]
        assert not values, f"no such columns: {values}"
        marks = ", ".join("?" for _ in columns)
        self.connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)

    def add_window(self, start: int, commit_id: int, **values: object) -> None:
        """Insert one time window that closed `start` seconds after 2026-01-01."""
        base: dict[str, object] = {
            "domain": "live",
            "model": "m",
            "window_kind": "time",
            "start": start,
            "close_time": MIDNIGHT + timedelta(seconds=start),
            "counts": [1, 2],
            "tokens": 3,
            "level": "healthy",
            "weight": 1.0,
            "row_version": 1,
            "commit_id": commit_id,
        }
        self.add("windows", **base | values)

    def remove(self, table: str, condition: str, commit_id: int) -> None:
        """Remove rows as the owner's store does."""
        remove_rows(self.connection, table, condition, commit_id)


def _default(kind: str) -> object:
    return [] if kind.endswith("[]") else DEFAULTS[kind]
