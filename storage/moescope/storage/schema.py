"""Bringing a store file to the schema of this version."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from moescope.core.tables import TABLES, VIEWS
from moescope.storage.errors import SchemaTooNewError, StoreUnreadableError
from moescope.storage.migrations import MIGRATIONS
from moescope.storage.transaction import transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from moescope.core.clock import Clock
    from moescope.storage.migrations import Migration


def schema_version(connection: duckdb.DuckDBPyConnection) -> int:
    """Number of the newest migration that a file has seen; 0 for an empty file.

    Raises:
        StoreUnreadableError: The file has tables, but none of them is moescope's.
    """
    tables = {
        name
        for (name,) in connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE NOT internal"
        ).fetchall()
    }
    if "schema_migrations" not in tables:
        if tables:
            raise StoreUnreadableError(
                "The file is a DuckDB database, but not a moescope store.",
                why=f"It has the tables {', '.join(sorted(tables))}.",
                next_step="Name another file.",
            )
        return 0
    row = connection.execute("SELECT coalesce(max(version), 0) FROM schema_migrations").fetchone()
    return int(row[0]) if row else 0


def migrate(
    connection: duckdb.DuckDBPyConnection,
    clock: Clock,
    migrations: Sequence[Migration] = MIGRATIONS,
) -> list[str]:
    """Apply the migrations that a file has not seen, all of them in one transaction.

    Returns:
        What was applied, in words.

    Raises:
        SchemaTooNewError: The file has seen a migration that this version does not know.
        StoreUnreadableError: The file holds something else, or its tables are not the declared
            ones although it has seen every migration.
    """
    found = schema_version(connection)
    newest = max((number for number, _, _ in migrations), default=0)
    if found > newest:
        raise SchemaTooNewError(
            f"The store file has schema {found}; this moescope knows schemas up to {newest}.",
            why="A newer moescope has opened it.",
            next_step="Upgrade moescope, or restore an export made before the upgrade.",
        )
    now = datetime.fromtimestamp(clock.now_us() / 1e6, UTC).replace(tzinfo=None)
    applied = []
    with transaction(connection):
        for number, words, apply in sorted(migrations, key=lambda migration: migration[0]):
            if number > found:
                apply(connection)
                connection.execute(
                    "INSERT INTO schema_migrations VALUES (?, ?, ?)", [number, words, now]
                )
                applied.append(f"{number}: {words}")
        _check_columns(connection)
        for view in VIEWS:
            connection.execute(f"CREATE OR REPLACE VIEW {view.name} AS {view.sql}")
    return applied


def _check_columns(connection: duckdb.DuckDBPyConnection) -> None:
    """Refuse a file whose tables are not the declared ones, before a commit fails on them.

    Migrations are only numbered from the first release on: a file of a development version before
    it has the same number, but may lack columns.
    """
    stored: dict[str, set[str]] = {}
    for table, column, kind in connection.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
    ).fetchall():
        stored.setdefault(table, set()).add(f"{column} {kind}")
    for table in TABLES:
        declared = {f"{column.name} {column.type}" for column in table.columns}
        found = stored.get(table.name, set())
        if found != declared:
            parts = [
                f"{words} {', '.join(sorted(names))}"
                for words, names in (("lacks", declared - found), ("also has", found - declared))
                if names
            ]
            raise StoreUnreadableError(
                "The store file was written by a development version of moescope.",
                why=f"Its table {table.name} {' and '.join(parts)}.",
                next_step="Move it and its export aside: the owner rebuilds it from the batch "
                "logs that are still there. Or go on with that version.",
            )
