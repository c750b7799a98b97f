"""What a reader of an export sees, beside what the store holds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb

from moescope.core.tables import TABLE_BY_NAME
from moescope.storage.export import read_manifest
from moescope.storage.export.views import select_table

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.storage.export.changes import ReadableStore


def exported_rows(folder: Path, table: str, columns: str = "*") -> Counter[tuple[Any, ...]]:
    """What a reader of the newest manifest sees."""
    manifest = read_manifest(folder)
    assert manifest is not None
    source = select_table(TABLE_BY_NAME[table], manifest.tables[table], folder)
    return Counter(_hashable(duckdb.execute(f"SELECT {columns} FROM ({source})").fetchall()))


def stored_rows(store: ReadableStore, table: str, columns: str = "*") -> Counter[tuple[Any, ...]]:
    """What the store holds."""
    rows = store.cursor().execute(f"SELECT {columns} FROM {table}").fetchall()
    return Counter(_hashable(rows))


def _hashable(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in rows]
