"""Closed shared windows that late rows change: their rows go, to be written again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from moescope.core.vocabulary import CloseReason, WindowKind
from moescope.storage.lanes import lane_id
from moescope.storage.removals import remove_rows
from moescope.storage.shared import ClosedWindow, Series, WindowSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from moescope.storage.shared import PaneSums

_KEYS = "late_window_keys"
_ROWS = "late_window_rows"
_KEY = (
    "lane", "phase", "scope_kind", "scope_value", "window_kind", "size", "stride", "start", "task",
)  # fmt: skip


@dataclass(slots=True)
class Reopened:
    """What became of closed windows that late rows concern.

    Attributes:
        refused: Windows that no longer change, since not all of their panes are kept.
        spans: Windows that open again.
        taken_back: Of these, those that were finished before, as they were.
        versions: Row versions that were stored, by series: (low, high, version).
    """

    refused: set[WindowSpan] = field(default_factory=set)
    spans: list[WindowSpan] = field(default_factory=list)
    taken_back: list[ClosedWindow] = field(default_factory=list)
    versions: dict[tuple[Series, int, int], list[tuple[int, int, int]]] = field(
        default_factory=dict
    )

    def next_version(self, span: WindowSpan) -> int:
        """Row version of a window that closes now."""
        stored = self.versions.get((span.series, span.size, span.stride), ())
        return 1 + max(
            (version for low, high, version in stored if low < span.high and span.low < high),
            default=0,
        )


def reopen_windows(
    connection: duckdb.DuckDBPyConnection,
    spans: Sequence[WindowSpan],
    sums: Sequence[PaneSums],
    commit_id: int,
) -> Reopened:
    """Remove the rows of closed windows whose panes are all there.

    Args:
        connection: Inside the transaction.
        spans: Closed windows that late rows concern.
        sums: What their stored panes add up to, without the late rows.
        commit_id: Number of the transaction.
    """
    result = Reopened()
    if not spans:
        return result
    windows = [
        ClosedWindow(span, each, CloseReason.WATERMARK)
        for span, each in zip(spans, sums, strict=True)
    ]
    stored = _stored_rows(connection, windows)
    rows: list[int] = []
    for number, window in enumerate(windows):
        found = stored.get(number, [])
        version = max((version for _, version, *_ in found), default=0)
        if any(seen != window.sums.seen for _, _, seen, _ in found):
            result.refused.add(window.span)
            continue
        result.spans.append(window.span)
        rows.extend(row for row, *_ in found)
        if window.sums.seen:
            placement = next((placement for *_, placement in found), "")
            result.taken_back.append(replace(window, placement_id=placement))
            span = window.span
            result.versions.setdefault((span.series, span.size, span.stride), []).append(
                (span.low, span.high, max(version, 1))
            )
    if rows:
        connection.register(_ROWS, pa.table({"id": pa.array(rows, pa.int64())}))
        replaced = f"rowid IN (SELECT id FROM {_ROWS})"
        remove_rows(connection, "windows", replaced, commit_id)
        connection.unregister(_ROWS)
    return result


def _stored_rows(
    connection: duckdb.DuckDBPyConnection, windows: Sequence[ClosedWindow]
) -> dict[int, list[tuple[int, int, int, str]]]:
    """Number of a window → (row id, row version, seen, placement or "") of its rows."""
    series = [window.span.series for window in windows]
    connection.register(
        _KEYS,
        pa.table(
            {
                "number": pa.array(range(len(windows)), pa.int64()),
                "lane": pa.array([lane_id(each.lane) for each in series], pa.string()),
                "phase": pa.array([each.phase for each in series], pa.string()),
                "scope_kind": pa.array([str(each.scope_kind) for each in series], pa.string()),
                "scope_value": pa.array([each.scope_value for each in series], pa.string()),
                "window_kind": pa.array([str(each.kind) for each in series], pa.string()),
                "size": pa.array([window.span.size for window in windows], pa.int64()),
                "stride": pa.array([window.span.stride for window in windows], pa.int64()),
                "start": pa.array([window.start for window in windows], pa.int64()),
                "task": pa.array([each.task for each in series], pa.string()),
            }
        ),
    )
    # Says what the join implies, so that old row groups are skipped.
    recent = ""
    if all(window.span.series.kind is WindowKind.TIME for window in windows):
        recent = f"WHERE w.close_time >= make_timestamp({min(w.span.high for w in windows)})"
    found = connection.execute(
        f"SELECT k.number, w.rowid, w.row_version, w.seen, coalesce(w.placement, '')"
        f" FROM windows w"
        f" JOIN {_KEYS} k USING ({', '.join(_KEY)}) {recent}"
    ).fetchall()
    connection.unregister(_KEYS)
    result: dict[int, list[tuple[int, int, int, str]]] = {}
    for number, row, version, seen, placement in found:
        result.setdefault(number, []).append((row, version, seen, placement))
    return result
