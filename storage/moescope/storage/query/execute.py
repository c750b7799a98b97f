"""Running one checked statement and packing its rows as an Arrow IPC stream."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from moescope.storage.query.statement import check_statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb

_BATCH_ROWS: Final = 8_192
# Arrow has no type for these that polars and other readers accept.
_TEXT_ONLY_TYPES: Final = re.compile(r"\b(INTERVAL|UNION|BIGNUM|VARINT|BIT|VARIANT|GEOMETRY)\b")


@dataclass(frozen=True, slots=True)
class PackedRows:
    """An Arrow IPC stream of `rows` rows; `truncated` when a limit cut it."""

    arrow: bytes
    rows: int
    truncated: bool


def execute_reading(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    parameters: Sequence[Any] | Mapping[str, Any] | None,
    *,
    max_rows: int,
    max_bytes: int,
) -> PackedRows:
    """Check the statement, run it in a read-only transaction, pack what fits the limits.

    Intervals, unions, bit strings and big numbers arrive as text.

    Raises:
        QueryRefusedError: The statement does more than read.
        QueryFailedError: It cannot be parsed.
        duckdb.Error: It failed.
    """
    check_statement(connection, query)
    connection.execute("begin transaction read only")
    try:
        relation = connection.sql(query, params=parameters)
        return _pack(_readable(relation), max_rows, max_bytes)
    finally:
        connection.execute("rollback")


def _readable(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    kinds = [str(kind) for kind in relation.types]
    if not any(_TEXT_ONLY_TYPES.search(kind) for kind in kinds):
        return relation
    # By position: names may repeat, and a cast must not change them.
    names = [_quoted(name) for name in relation.columns]
    inner = ", ".join(f"c{index}" for index in range(len(kinds)))
    outer = ", ".join(
        f"{_as_text(index, kind)} AS {name}"
        for index, (kind, name) in enumerate(zip(kinds, names, strict=True))
    )
    text = f"SELECT {outer} FROM r AS t({inner})"
    return cast("duckdb.DuckDBPyRelation", relation.query("r", text))


def _as_text(index: int, kind: str) -> str:
    return f"CAST(c{index} AS VARCHAR)" if _TEXT_ONLY_TYPES.search(kind) else f"c{index}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _pack(relation: duckdb.DuckDBPyRelation, max_rows: int, max_bytes: int) -> PackedRows:
    reader = relation.to_arrow_reader(_BATCH_ROWS)
    sink = io.BytesIO()
    rows = 0
    truncated = False
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            fitting = _fitting_rows(batch, max_rows - rows, max_bytes - sink.tell())
            if fitting:
                writer.write_batch(batch.slice(0, fitting))
                rows += fitting
            if fitting < batch.num_rows:
                truncated = True
                break
    return PackedRows(sink.getvalue(), rows, truncated)


def _fitting_rows(batch: pa.RecordBatch, rows_left: int, bytes_left: int) -> int:
    fitting: int = min(batch.num_rows, max(0, rows_left))
    while fitting and _stream_bytes(batch.slice(0, fitting)) > bytes_left:
        fitting //= 2
    return fitting


def _stream_bytes(batch: pa.RecordBatch) -> int:
    return cast("int", pa.ipc.get_record_batch_size(batch))
