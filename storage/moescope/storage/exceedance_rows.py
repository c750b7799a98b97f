"""The `exceedances` table: increments in, the worst of each slot stays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyarrow as pa

from moescope.core.exceedance import SLOT_US, Exceedance, ExceedanceKey
from moescope.storage.columns import insert, timestamps
from moescope.storage.lanes import lane_id
from moescope.storage.removals import remove_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

    from moescope.core.exceedance import Exceedances

_KEY = (
    "lane", "phase", "window_kind", "size", "stride", "scope_kind", "scope_value", "family", "slot",
    "version",
)  # fmt: skip
_VALUES = (
    "value", "metric", "layer", "start", "request", "windows", "red_windows", "mixed_windows",
)  # fmt: skip
_INCREMENTS = "exceedance_increments"
_REPLACED = "replaced_exceedances"


def add_exceedances(total: Exceedances, increments: Exceedances) -> None:
    """Merge increments into a sum in memory."""
    for key, value in increments.items():
        known = total.get(key)
        total[key] = value if known is None else known.merged(value)


def merge_exceedances(
    connection: duckdb.DuckDBPyConnection, increments: Exceedances, commit_id: int
) -> None:
    """Merge increments into the stored slots.

    Args:
        connection: Inside the transaction.
        increments: Of this commit, each slot once.
        commit_id: Number of the transaction.
    """
    if not increments:
        return
    keys, values = list(increments), list(increments.values())
    columns = _key_columns(keys)
    connection.register(
        _INCREMENTS, pa.table({**columns, "number": pa.array(range(len(keys)), pa.int64())})
    )
    slots = [key.slot_us for key in keys]
    # The bounds say what the join implies, so that old row groups are skipped.
    found = connection.execute(
        f"SELECT i.number, e.rowid, {', '.join(f'e.{name}' for name in _VALUES)}"
        f" FROM exceedances e JOIN {_INCREMENTS} i USING ({', '.join(_KEY)})"
        f" WHERE e.slot BETWEEN make_timestamp({min(slots)}) AND make_timestamp({max(slots)})"
    ).fetchall()
    connection.unregister(_INCREMENTS)
    for number, _, *stored in found:
        values[number] = values[number].merged(_exceedance(*stored))
    if found:
        connection.register(_REPLACED, pa.table({"id": pa.array([row for _, row, *_ in found])}))
        replaced = f"rowid IN (SELECT id FROM {_REPLACED})"
        remove_rows(connection, "exceedances", replaced, commit_id)
        connection.unregister(_REPLACED)
    insert(connection, "exceedances", pa.table({**columns, **_value_columns(values, commit_id)}))


def _exceedance(value: float | None, *others: object) -> Exceedance:
    return Exceedance(-math.inf if value is None else value, *others)  # type: ignore[arg-type]  # the other columns


def _key_columns(keys: Sequence[ExceedanceKey]) -> dict[str, pa.Array]:
    def text(values: Iterable[str]) -> pa.Array:
        return pa.array([str(value) for value in values], pa.string())

    return {
        "lane": text(lane_id(key.lane) for key in keys),
        "phase": text(key.phase for key in keys),
        "window_kind": text(key.kind for key in keys),
        "size": pa.array([key.size for key in keys], pa.int64()),
        "stride": pa.array([key.stride for key in keys], pa.int64()),
        "scope_kind": text(key.scope_kind for key in keys),
        "scope_value": text(key.scope_value for key in keys),
        "family": text(key.family for key in keys),
        "slot": timestamps([key.slot_us for key in keys]),
        "version": text(key.version for key in keys),
    }


def _value_columns(values: Sequence[Exceedance], commit_id: int) -> dict[str, pa.Array]:
    kinds = {"metric": pa.string(), "request": pa.string(), "layer": pa.int32()}
    columns = {
        name: pa.array([getattr(each, name) for each in values], kinds.get(name, pa.int64()))
        for name in _VALUES[1:]
    }
    worst = [None if each.value == -math.inf else each.value for each in values]
    return {
        "value": pa.array(worst, pa.float64()),
        **columns,
        "commit_id": pa.array([commit_id] * len(values), pa.int64()),
    }


def slots_closed_by(reached_us: int) -> int:
    """Event time at which every slot is over that a window closed by then can lie in."""
    return (reached_us // SLOT_US + 1) * SLOT_US
