"""Rows of a query as dictionaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb


def rows_of(
    cursor: duckdb.DuckDBPyConnection, query: str, **parameters: object
) -> list[dict[str, Any]]:
    """Run a query and return its rows, by name of column."""
    answer = cursor.execute(query, parameters)
    names = [column[0] for column in answer.description or ()]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
