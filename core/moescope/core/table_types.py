"""What a table and a view of the store are declared with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: Its name.
        type: DuckDB type.
        doc: One sentence.
        nullable: Whether null is allowed; the sentence says what null means.
    """

    name: str
    type: str
    doc: str
    nullable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table.

    Attributes:
        name: Its name.
        doc: One sentence.
        columns: In order.
        key: Names of the columns that identify a row. Kept by the code that writes; only tables
            with `indexed` have an index that enforces it.
        exported: Whether the Parquet export and queries show it.
        retention: How long rows live, for people.
        time_column: The TIMESTAMP column that dates a row, or None for tables that stay small.
        revised: Whether a row can be replaced or removed after the commit that wrote it, not
            counting removal by age.
        indexed: Whether the key is a PRIMARY KEY of the database.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    exported: bool
    retention: str
    time_column: str | None = None
    revised: bool = True
    indexed: bool = False

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(column.name for column in self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view.

    Attributes:
        name: Its name.
        doc: One sentence: the question that it answers.
        sql: A SELECT over tables and views declared before it.
        columns: Column names with one sentence each, in order.
    """

    name: str
    doc: str
    sql: str
    columns: tuple[tuple[str, str], ...]
