"""Removing rows of exported tables, so that readers of the export lose them too.

The export appends what is new. A row that goes away, or is written again under another key, can
only be hidden there if the store says so: in `removed_rows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.core.tables import TABLE_BY_NAME
from moescope.storage.export.layout import has_row_key, row_key_expression

if TYPE_CHECKING:
    import duckdb

KEPT_COMMITS: Final = 20_000
"""How far back removals are kept; the export reads them within a minute."""
FORGET_EVERY: Final = 100


def remove_rows(
    connection: duckdb.DuckDBPyConnection, table: str, condition: str, commit_id: int
) -> None:
    """Delete rows of a table whose rows can be revised.

    A row with the same key and this `commit_id`, inserted in the same transaction, replaces it.

    Args:
        connection: Inside the transaction.
        table: Name of the table.
        condition: SQL that is true for the rows to remove.
        commit_id: Number of the transaction.
    """
    declared = TABLE_BY_NAME[table]
    if has_row_key(declared):
        connection.execute(
            f"INSERT INTO removed_rows SELECT ?, {row_key_expression(declared)}, ?"
            f" FROM {table} WHERE {condition}",
            [table, commit_id],
        )
    connection.execute(f"DELETE FROM {table} WHERE {condition}")
    if commit_id % FORGET_EVERY == 0:
        connection.execute(
            "DELETE FROM removed_rows WHERE commit_id < ?", [commit_id - KEPT_COMMITS]
        )
