"""Changes of the schema, in order. A released one is never edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.storage.migrations import m0001_first_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    import duckdb

Migration = tuple[int, str, "Callable[[duckdb.DuckDBPyConnection], None]"]
"""Number, what it does, and the function that does it."""

MIGRATIONS: tuple[Migration, ...] = ((1, "create the first tables", m0001_first_tables.apply),)
