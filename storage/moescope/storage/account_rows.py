"""Rows of ingest accounting, dead letters, producers and references."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.storage.columns import insert, records
from moescope.storage.control import replace_rows
from moescope.storage.lanes import lane_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb
    import pyarrow as pa
    from _typeshed import DataclassInstance

    from moescope.core.accounts import BatchAccount, DeadLetter, DeadLetterCount, NodeStatus
    from moescope.core.emission import TrailingReference

_INCOMING = "incoming_keys"


def _values(record: DataclassInstance, commit_id: int) -> dict[str, Any]:
    """Fields of a dataclass under the names of the columns."""
    names = {"offset": "log_offset", "append_time_us": "append_time"}
    values = {
        names.get(field.name, field.name): getattr(record, field.name) for field in fields(record)
    }
    return {**values, "commit_id": commit_id}


def insert_batches(
    connection: duckdb.DuckDBPyConnection, batches: Sequence[BatchAccount], commit_id: int
) -> None:
    """One row per record read."""
    rows = [_values(batch, commit_id) for batch in batches]
    insert(connection, "batches", records("batches", rows))


def insert_dead_letters(
    connection: duckdb.DuckDBPyConnection, letters: Sequence[DeadLetter], commit_id: int
) -> None:
    """One row per record that could not be used."""
    rows = [_values(letter, commit_id) for letter in letters]
    insert(connection, "dead_letters", records("dead_letters", rows))


def add_dead_letter_counts(
    connection: duckdb.DuckDBPyConnection, counts: Sequence[DeadLetterCount], commit_id: int
) -> None:
    """Add increments to what was counted before."""
    if not counts:
        return
    sums: dict[tuple[str, str], tuple[int, int, int]] = {
        (partition, reason): (records, kept, record_bytes)
        for partition, reason, records, kept, record_bytes in connection.execute(
            "SELECT partition, reason, records, kept, record_bytes FROM dead_letter_counts"
        ).fetchall()
    }
    touched = {(each.partition, each.reason) for each in counts}
    for each in counts:
        key = (each.partition, each.reason)
        number, kept, record_bytes = sums.get(key, (0, 0, 0))
        sums[key] = (number + each.records, kept + each.kept, record_bytes + each.record_bytes)
    names = ("partition", "reason", "records", "kept", "record_bytes")
    rows = [dict(zip(names, (*key, *sums[key]), strict=True)) for key in sorted(touched)]
    replace_rows(connection, "dead_letter_counts", rows, commit_id)


def replace_producers(
    connection: duckdb.DuckDBPyConnection, nodes: Sequence[NodeStatus], commit_id: int
) -> None:
    """The newest state of each producer."""
    rows = []
    for node in nodes:
        watermark = NO_TIME if node.watermark_us == END_OF_TIME else node.watermark_us
        rows.append({**_values(node, commit_id), "watermark": watermark})
    replace(
        connection, "producers", records("producers", rows), ("partition", "node", "incarnation")
    )


def insert_references(
    connection: duckdb.DuckDBPyConnection,
    references: Iterable[TrailingReference],
    commit_id: int,
) -> None:
    """References that came into force."""
    rows = [
        {
            "reference_id": reference.reference_id,
            "lane": lane_id(reference.lane),
            "phase": reference.phase,
            "partition": reference.partition,
            "effective_from": reference.effective_from_us,
            "counts": np.ascontiguousarray(reference.counts, "<i8").tobytes(),
            "commit_id": commit_id,
        }
        for reference in references
    ]
    replace(
        connection,
        "reference_distributions",
        records("reference_distributions", rows),
        ("reference_id",),
    )


def replace(
    connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table, key: Sequence[str]
) -> None:
    """Insert rows in place of those with the same key."""
    if not len(rows):
        return
    # What `fetchone` left unread would be in the way.
    connection.complete()
    connection.register(_INCOMING, rows.select(list(key)))
    same = " AND ".join(f"{table}.{name} = {_INCOMING}.{name}" for name in key)
    connection.execute(f"DELETE FROM {table} USING {_INCOMING} WHERE {same}")
    connection.unregister(_INCOMING)
    insert(connection, table, rows)
