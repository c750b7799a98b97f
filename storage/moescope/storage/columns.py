"""Arrow columns as the declared tables want them, and bulk inserts of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from moescope.core.clock import NO_TIME
from moescope.core.tables import TABLE_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb
    from numpy.typing import NDArray

_INCOMING = "incoming_rows"

ARROW_TYPES: dict[str, pa.DataType] = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "UBIGINT": pa.uint64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
    "BLOB": pa.binary(),
    "VARCHAR[]": pa.list_(pa.string()),
    "BIGINT[]": pa.list_(pa.int64()),
    "INTEGER[]": pa.list_(pa.int32()),
    "UBIGINT[]": pa.list_(pa.uint64()),
    "DOUBLE[]": pa.list_(pa.float64()),
}
"""DuckDB type → Arrow type, for every type that a table is declared with."""


def timestamps(times_us: NDArray[np.int64] | Sequence[int | None]) -> pa.Array:
    """TIMESTAMP column; None and `NO_TIME` become null."""
    if not isinstance(times_us, np.ndarray):
        times_us = [NO_TIME if time_us is None else time_us for time_us in times_us]
    values = np.asarray(times_us, np.int64)
    return pa.array(values, pa.int64(), mask=values == NO_TIME).cast(pa.timestamp("us"))


def constant(value: str, rows: int) -> pa.Array:
    """The same text in every row, stored once."""
    return chosen([value], np.zeros(rows, np.int32))


def chosen(values: Sequence[str | None], index: NDArray[np.int32]) -> pa.Array:
    """Row r holds `values[index[r]]`."""
    return pa.DictionaryArray.from_arrays(pa.array(index), pa.array(values, pa.string()))


def vectors(flat: NDArray[np.generic], length: int) -> pa.Array:
    """Lists of `length` entries each, from their entries one after the other."""
    offsets = np.arange(0, len(flat) + 1, length or 1, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))


def empty_lists(rows: int) -> pa.Array:
    """A VARCHAR[] column without entries."""
    return pa.ListArray.from_arrays(
        pa.array(np.zeros(rows + 1, np.int32)), pa.array([], pa.string())
    )


def records(table: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Python rows as an Arrow table with the declared types; TIMESTAMPs are given in µs."""
    names = [column.name for column in TABLE_BY_NAME[table].columns]
    return table_of(table, {name: [row[name] for row in rows] for name in names})


def table_of(table: str, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Python columns as an Arrow table with the declared types; TIMESTAMPs are given in µs."""
    arrays = {}
    for column in TABLE_BY_NAME[table].columns:
        values = columns[column.name]
        if column.type == "TIMESTAMP":
            arrays[column.name] = timestamps(values)
        else:
            arrays[column.name] = pa.array(values, ARROW_TYPES[column.type])
    return pa.table(arrays)


def insert(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    """Bulk insert of an Arrow table, columns by name."""
    if len(rows):
        # What `fetchone` left unread would be in the way.
        connection.complete()
        connection.register(_INCOMING, rows)
        try:
            connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM {_INCOMING}")
        finally:
            connection.unregister(_INCOMING)
