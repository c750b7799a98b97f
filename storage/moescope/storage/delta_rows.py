"""The `deltas` table: panes in, panes of planned windows out, and when panes go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from moescope.core.clock import NO_TIME
from moescope.core.emission import SharedDelta
from moescope.core.router_sums import ROUTER_SUMS
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.storage.columns import insert, table_of
from moescope.storage.extras_codec import decode_extras, encode_extras
from moescope.storage.lanes import lane_id
from moescope.storage.shared import PaneSums, WindowSpan, add_panes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb
    from numpy.typing import NDArray

    from moescope.core.emission import LaneKey
    from moescope.storage.lanes import Lanes
    from moescope.storage.shared import WindowShapes

_SPANS = "planned_spans"
_SERIES = ("lane", "phase", "scope_kind", "scope_value", "window_kind", "task")
_NAMES = (
    "pane", "seen", "lost", "unknown_gap", "first_time_us", "last_time_us", "requests",
    "last_of_task",
)  # fmt: skip
_UNSIGNED, _SIGNED = np.dtype("<u8"), np.dtype("<i8")
_WIDTHS = tuple((np.dtype(f"<u{size}"), (1 << 8 * size) - 1) for size in (1, 2, 4, 8))
"""Types from the narrowest, each with the largest value that it holds."""


def encode_counts(counts: NDArray[Any]) -> bytes:
    """Counts in the narrowest width that holds them."""
    largest = int(np.maximum.reduce(counts, axis=None, initial=0))
    width = next(width for width, most in _WIDTHS if largest <= most)
    return counts.astype(width).tobytes()


def decode_counts(blob: bytes, lane: LaneKey) -> NDArray[np.uint64]:
    """uint64 [L, E]; the width follows from the length."""
    shape = (len(lane.layers), lane.experts)
    if not blob:
        return np.zeros(shape, np.uint64)
    entries = shape[0] * shape[1]
    width = np.dtype(f"<u{len(blob) // entries if entries else 1}")
    return np.frombuffer(blob, width).reshape(shape).astype(np.uint64)


def insert_deltas(
    connection: duckdb.DuckDBPyConnection,
    deltas: Sequence[tuple[SharedDelta, int | None]],
    commit_id: int,
) -> None:
    """Store panes, each with the watermark until which it is kept."""
    panes = [delta for delta, _ in deltas]
    columns: dict[str, list[Any]] = {
        name: [getattr(pane, name) for pane in panes] for name in (*_NAMES, "phase", "scope_value")
    }
    columns |= {
        "lane": [lane_id(pane.lane) for pane in panes],
        "domain": [pane.lane.domain for pane in panes],
        "scope_kind": [pane.scope_kind.value for pane in panes],
        "window_kind": [pane.kind.value for pane in panes],
        "task": [pane.task if pane.kind is WindowKind.TASK else "" for pane in panes],
        "counts": [encode_counts(pane.counts) for pane in panes],
        "dropped": [pane.dropped.astype(_UNSIGNED, copy=False).tobytes() for pane in panes],
        "request_gaps": [pane.request_gaps.astype(_SIGNED, copy=False).tobytes() for pane in panes],
        "router": [
            None if pane.router is None else pane.router.astype(_SIGNED, copy=False).tobytes()
            for pane in panes
        ],
        "extras": [encode_extras(pane) for pane in panes],
        "scenes": [list(pane.scene_tokens) for pane in panes],
        "scene_tokens": [list(pane.scene_tokens.values()) for pane in panes],
        "keep_until_us": [keep_until_us for _, keep_until_us in deltas],
        "commit_id": [commit_id] * len(panes),
    }
    insert(connection, "deltas", table_of("deltas", columns))


def _delta(row: dict[str, Any], lane: LaneKey) -> SharedDelta:
    """A stored pane; without the `counts` column, one that says only where and when."""
    values: dict[str, Any] = {name: row[name] for name in _NAMES}
    blob = row.get("counts")
    if blob is None:
        values |= {"counts": np.zeros((0, 0), np.uint64), "dropped": np.zeros(0, np.uint64)}
    else:
        values |= {
            "counts": decode_counts(blob, lane),
            "dropped": np.frombuffer(row["dropped"], "<u8"),
            "request_gaps": np.frombuffer(row["request_gaps"], "<i8"),
            "scene_tokens": dict(zip(row["scenes"], row["scene_tokens"], strict=True)),
            "router": _router(row["router"]),
            **decode_extras(row["extras"], lane),
        }
    return SharedDelta(
        lane=lane,
        phase=row["phase"],
        kind=WindowKind(row["window_kind"]),
        scope_kind=ScopeKind(row["scope_kind"]),
        scope_value=row["scope_value"],
        task=row["task"],
        **values,
    )


def _router(blob: bytes | None) -> NDArray[np.int64] | None:
    """int64 [L, ROUTER_SUMS]."""
    return None if blob is None else np.frombuffer(blob, "<i8").reshape(-1, ROUTER_SUMS)


def read_sums(
    connection: duckdb.DuckDBPyConnection,
    lanes: Lanes,
    spans: Sequence[WindowSpan],
    before_commit: int | None = None,
) -> list[PaneSums]:
    """Sums over the stored panes of each span; all zero where there are none.

    Args:
        connection: Inside the transaction.
        lanes: For the panes' shapes.
        spans: Windows, planned.
        before_commit: Leave out panes of this commit and later ones.
    """
    sums = [add_panes(span, ()) for span in spans]
    for kind in {span.series.kind for span in spans}:
        chosen = [number for number, span in enumerate(spans) if span.series.kind is kind]
        for number, delta in _panes(connection, lanes, spans, chosen, before_commit):
            sums[number].add(delta)
    return sums


def _panes(
    connection: duckdb.DuckDBPyConnection,
    lanes: Lanes,
    spans: Sequence[WindowSpan],
    chosen: Sequence[int],
    before_commit: int | None,
) -> Iterator[tuple[int, SharedDelta]]:
    connection.register(_SPANS, _span_table(spans, chosen))
    same = " AND ".join(f"d.{name} = s.{name}" for name in _SERIES)
    # The outer bounds say what the join implies, so that old row groups are skipped.
    found = connection.sql(
        f"SELECT s.number, d.* FROM deltas d JOIN {_SPANS} s"
        f" ON {same} AND d.pane >= s.low AND d.pane < s.high"
        f" WHERE d.pane >= {min(spans[number].low for number in chosen)}"
        f" AND d.pane < {max(spans[number].high for number in chosen)}"
        + ("" if before_commit is None else f" AND d.commit_id < {before_commit}")
    ).to_arrow_table()
    connection.unregister(_SPANS)
    for batch in found.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            yield row["number"], _delta(row, lanes[row["lane"]])


def _span_table(spans: Sequence[WindowSpan], chosen: Sequence[int]) -> pa.Table:
    series = [spans[number].series for number in chosen]
    return pa.table(
        {
            "number": pa.array(chosen, pa.int64()),
            "lane": pa.array([lane_id(each.lane) for each in series], pa.string()),
            "phase": pa.array([each.phase for each in series], pa.string()),
            "scope_kind": pa.array([str(each.scope_kind) for each in series], pa.string()),
            "scope_value": pa.array([each.scope_value for each in series], pa.string()),
            "window_kind": pa.array([str(each.kind) for each in series], pa.string()),
            "task": pa.array([each.task for each in series], pa.string()),
            "low": pa.array([spans[number].low for number in chosen], pa.int64()),
            "high": pa.array([spans[number].high for number in chosen], pa.int64()),
        }
    )


def keep_tasks_until(
    connection: duckdb.DuckDBPyConnection,
    spans: Sequence[WindowSpan],
    keep_until_us: Sequence[int | None],
) -> None:
    """Say until when the panes of task windows are kept; None: they are open (again)."""
    if not spans:
        return
    table = _span_table(spans, range(len(spans))).append_column(
        "keep", pa.array(keep_until_us, pa.int64())
    )
    connection.register(_SPANS, table)
    same = " AND ".join(f"deltas.{name} = s.{name}" for name in _SERIES)
    connection.execute(
        f"UPDATE deltas SET keep_until_us = s.keep FROM {_SPANS} s"
        f" WHERE {same} AND deltas.pane >= s.low AND deltas.pane < s.high"
    )
    connection.unregister(_SPANS)


def keep_steps_until(
    connection: duckdb.DuckDBPyConnection,
    domain: str,
    shapes: WindowShapes,
    step_reached: int,
    keep_until_us: int,
) -> None:
    """Say until when step panes are kept whose windows have all closed."""
    ends = [
        f"pane - pane % {stride} + {size} <= {step_reached}" for size, stride in shapes.step
    ] or ["true"]
    connection.execute(
        f"UPDATE deltas SET keep_until_us = ? WHERE window_kind = 'step' AND domain = ?"
        f" AND keep_until_us IS NULL AND {' AND '.join(ends)}",
        [keep_until_us, domain],
    )


def delete_deltas(
    connection: duckdb.DuckDBPyConnection, domain: str, watermark_us: int | None
) -> None:
    """Delete panes that no late row can change any more; None: all of the domain."""
    if watermark_us is None:
        connection.execute("DELETE FROM deltas WHERE domain = ?", [domain])
    else:
        connection.execute(
            "DELETE FROM deltas WHERE domain = ? AND keep_until_us <= ?", [domain, watermark_us]
        )


def read_plan_panes(
    connection: duckdb.DuckDBPyConnection, lanes: Lanes
) -> Iterator[tuple[SharedDelta, bool]]:
    """Every stored pane without its counts, and whether it belongs to a closed task window."""
    columns = ", ".join((*_SERIES, *_NAMES))
    found = connection.sql(
        f"SELECT {columns}, keep_until_us IS NOT NULL AS settled FROM deltas"
        f" WHERE window_kind <> 'step' OR keep_until_us IS NULL"
    ).to_arrow_table()
    for batch in found.to_batches(max_chunksize=4096):
        for row in batch.to_pylist():
            delta = _delta(row, lanes[row["lane"]])
            yield delta, row["settled"] and delta.kind is WindowKind.TASK


def read_trailing_panes(
    connection: duckdb.DuckDBPyConnection, lanes: Lanes
) -> Iterator[SharedDelta]:
    """Stored time panes of scope `all`, with their counts."""
    found = connection.sql(
        "SELECT * REPLACE (NULL AS router, NULL AS extras) FROM deltas"
        " WHERE window_kind = 'time' AND scope_kind = 'all'"
        " AND (seen > 0 OR lost > 0 OR unknown_gap)"
    ).to_arrow_table()
    for batch in found.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            yield _delta(row, lanes[row["lane"]])


def step_keep_until(watermark_us: int, retention_us: int) -> int:
    """Retention of step panes counts from the watermark at which their last window closed."""
    return NO_TIME if watermark_us == NO_TIME else watermark_us + retention_us
