"""Writing rows of a read transaction to Parquet files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from moescope.storage.export.layout import (
    COMMIT_COLUMN,
    REMOVALS_TABLE,
    ROW_KEY_COLUMN,
    UNDATED,
    WHOLE,
    file_expressions,
    has_row_key,
    is_partitioned,
    partition_expression,
    partition_folder,
    quoted,
    text_literal,
)
from moescope.storage.export.manifest import File, Level, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    import duckdb

    from moescope.core.tables import Table

_OPTIONS = "FORMAT parquet, COMPRESSION zstd, RETURN_FILES"


class ParquetWriter:
    """Writes files of one generation from one read transaction, and knows what it wrote.

    Args:
        cursor: Inside a transaction; everything is read through it.
        folder: The export folder.
        generation: Goes into the file names, so that no name is ever used twice.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection, folder: Path, generation: int) -> None:
        self._cursor = cursor
        self._folder = folder
        self._generation = generation
        self._written: list[Path] = []

    def write_partitions(self, table: Table, level: Level, condition: str) -> dict[str, list[File]]:
        """Write the table's rows for which the condition holds, one or more files per hour."""
        root = self._folder / table.name
        root.mkdir(parents=True, exist_ok=True)
        pattern = f"{level}-{self._generation:010d}-{{i}}"
        rows = (
            f"SELECT {file_expressions(table)}, {partition_expression(table)} AS hour"
            f" FROM {quoted(table.name)} WHERE {condition}"
        )
        paths = self._copy(
            rows,
            root,
            f"PARTITION_BY (hour), FILENAME_PATTERN {text_literal(pattern)}, OVERWRITE_OR_IGNORE",
        )
        found: dict[str, list[File]] = {}
        for path in sorted(paths):
            partition = path.parent.name.partition("=")[2]
            found.setdefault(partition, []).append(File(self._relative(path), level))
        return found

    def write_removals(self, table: Table, level: Level, condition: str) -> list[File]:
        """Write key and commit of what was removed; most often that is nothing."""
        if not has_row_key(table):
            return []
        where = f"table_name = {text_literal(table.name)} AND {condition}"
        row = self._cursor.execute(
            f"SELECT count(*) FROM {REMOVALS_TABLE} WHERE {where}"
        ).fetchone()
        if row is None or row[0] == 0:
            return []
        folder = self._folder / REMOVALS_TABLE / table.name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{level}-{self._generation:010d}.parquet"
        self._copy(
            f"SELECT {ROW_KEY_COLUMN}, max({COMMIT_COLUMN}) AS {COMMIT_COLUMN}"
            f" FROM {REMOVALS_TABLE} WHERE {where} GROUP BY {ROW_KEY_COLUMN}",
            path,
        )
        return [File(self._relative(path), level)]

    def write_empty(self, table: Table) -> str:
        """Write a file with the table's columns and no rows; its path below the folder."""
        folder = self._folder / table.name
        folder /= partition_folder(UNDATED if is_partitioned(table) else WHOLE)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"empty-{self._generation:010d}.parquet"
        kinds = ", ".join(
            f"NULL::{column.type} AS {quoted(column.name)}" for column in table.columns
        )
        if has_row_key(table):
            kinds += f", NULL::UBIGINT AS {ROW_KEY_COLUMN}"
        self._copy(f"SELECT {kinds} LIMIT 0", path)
        return self._relative(path)

    def make_durable(self) -> None:
        """Force everything that was written to disk, before a manifest may name it."""
        for path in self._written:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        for folder in _folders_up_to(self._folder, self._written):
            sync_folder(folder)

    def _copy(self, rows: str, target: Path, options: str = "") -> list[Path]:
        extra = f", {options}" if options else ""
        result = self._cursor.execute(
            f"COPY ({rows}) TO {text_literal(str(target))} ({_OPTIONS}{extra})"
        ).fetchone()
        paths = [Path(path) for path in (result[1] if result else [])]
        self._written += paths
        return paths

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()


def _folders_up_to(root: Path, paths: Iterable[Path]) -> set[Path]:
    folders: set[Path] = set()
    for path in paths:
        folder = path.parent
        while folder not in folders:
            folders.add(folder)
            if folder == root:
                break
            folder = folder.parent
    return folders
