"""The SQL with which a reader sees a table of the export, each row once, in its newest version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.storage.export.layout import (
    COMMIT_COLUMN,
    ROW_KEY_COLUMN,
    quoted,
    text_literal,
)

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.tables import Table
    from moescope.storage.export.manifest import TableFiles


def select_table(table: Table, files: TableFiles, folder: Path) -> str:
    """A SELECT over the table's files.

    Args:
        table: Its declaration.
        files: As in the manifest.
        folder: The export folder.

    Returns:
        SQL with the declared columns, in order. A row is left out when a removal with its key
        and a greater commit id exists; the list of removals is short, so that the anti-join
        costs little and filters still reach the Parquet scan.
    """
    names = ", ".join(f"t.{quoted(name)}" for name in table.column_names)
    rows = f"SELECT {names} FROM {_scan(folder, files.data_paths())} AS t"
    if not files.removals:
        return rows
    removals = _scan(folder, [file.path for file in files.removals])
    return (
        f"{rows} ANTI JOIN ("
        f"SELECT {ROW_KEY_COLUMN}, max({COMMIT_COLUMN}) AS newest"
        f" FROM {removals} GROUP BY {ROW_KEY_COLUMN}"
        f") AS r ON t.{ROW_KEY_COLUMN} = r.{ROW_KEY_COLUMN} AND t.{COMMIT_COLUMN} < r.newest"
    )


def _scan(folder: Path, paths: list[str]) -> str:
    listed = ", ".join(text_literal(str(folder / path)) for path in paths)
    return f"read_parquet([{listed}], hive_partitioning = false)"
