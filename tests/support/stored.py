"""What a store holds after a roll-up, and what the plain-Python roll-up says it should hold."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb
from oracles.windows_plain import (
    NO_TIME,
    PHASE_NAMES,
    Accepted,
    Partition,
    counts_of,
    step_windows,
    task_windows,
    time_windows,
)
from support.expected import expected_outcome

from moescope.core.tables import TABLE_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from oracles.windows_plain import Lane, Record

    from moescope.processors.config import WindowConfig

NOT_A_RESULT = {"row_version", "commit_id"}
"""Columns that tell how a result came about."""

COMPARED = (
    "windows", "metric_histograms", "reference_distributions", "lanes", "batches",
    "dead_letters", "dead_letter_counts", "producers",
)  # fmt: skip

WINDOW_COLUMNS = (
    "window_kind", "revision", "phase", "scope_kind", "scope_value", "size", "stride", "start",
    "request", "task", "layer", "node", "tokens", "requests", "seen", "expected", "complete",
    "counts", "first_time", "last_time", "weight",
)  # fmt: skip


def tables(path: Path) -> dict[str, list[str]]:
    """Every table that must not depend on commits and restarts, sorted."""
    with duckdb.connect(str(path), read_only=True) as connection:
        found = {}
        for name in COMPARED:
            columns = [c for c in TABLE_BY_NAME[name].column_names if c not in NOT_A_RESULT]
            query = f"SELECT {', '.join(columns)} FROM {name}"
            found[name] = sorted(map(repr, connection.execute(query).fetchall()))
        late = "SELECT late_rows, duplicate_windows FROM domains"
        found["late"] = sorted(map(repr, connection.execute(late).fetchall()))
        return found


def stored_windows(path: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Integers of each window row by (kind, revision, phase, scope …, layer)."""
    with duckdb.connect(str(path), read_only=True) as connection:
        query = f"SELECT {', '.join(WINDOW_COLUMNS)} FROM windows"
        rows = connection.execute(query).fetchall()
    found = {}
    for row in rows:
        named = dict(zip(WINDOW_COLUMNS, row, strict=True))
        named["counts"] = tuple(named["counts"])
        key = tuple(named[name] for name in WINDOW_COLUMNS[:11])
        assert key not in found
        found[key] = tuple(named[name] for name in WINDOW_COLUMNS[11:])
    return found


def expected_windows(
    records: Mapping[str, Sequence[Record]], config: WindowConfig
) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The same from the plain-Python roll-up of every partition's records."""
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    partitions: list[Partition] = []
    for each in records.values():
        outcome = expected_outcome(each, config)
        partitions.append(outcome.partition)
        # Where a request goes on behind its end, a window may form again: the first is kept.
        for window in reversed(outcome.token):
            _add_token(found, window, each[0].lane.top_k)
    accepted = [one for partition in partitions for one in partition.accepted]
    for size, slide in config.time:
        for (lane, phase, kind, value, start), rows in time_windows(accepted, size, slide).items():
            scope = (value or "unknown") if kind == "scene" else value
            key = ("time", lane.revision, PHASE_NAMES[phase], kind, scope, size, slide, start)
            _add_shared(found, key, "", rows, lane)
    for size, stride in config.step:
        for (lane, phase, start), rows in step_windows(accepted, size, stride).items():
            key = ("step", lane.revision, PHASE_NAMES[phase], "all", "", size, stride, start)
            _add_shared(found, key, "", rows, lane)
    ends = [end for partition in partitions for end in partition.task_ends]
    for lane, phase, task, start, rows, _ in task_windows(accepted, ends):
        key = ("task", lane.revision, PHASE_NAMES[phase], "all", "", 0, 0, start)
        _add_shared(found, key, task, rows, lane)
    return found


def _add_token(found: dict[Any, Any], window: tuple[Any, ...], top_k: int) -> None:
    (
        revision, phase, size, stride, start, request, task, node, seen, expected, complete, _,
        first, last, _, weight, counts, *_,
    ) = window  # fmt: skip
    if not weight:
        return
    for layer, row in enumerate(counts):
        key = (
            "token", revision, phase, "all", "", size, stride, start, request, task, layer,
        )  # fmt: skip
        tokens = sum(row) // top_k
        found[key] = (
            node, tokens, 1, seen, expected, complete, row, timestamp(first), timestamp(last),
            weight,
        )  # fmt: skip


def _add_shared(
    found: dict[Any, Any], key: tuple[Any, ...], task: str, rows: list[Accepted], lane: Lane
) -> None:
    times = [NO_TIME if one.row.time is None else one.row.time for one in rows]
    node = key[4] if key[3] == "node" else ""
    requests = len({(one.row.request, one.row.phase, one.life) for one in rows})
    for layer, counts in enumerate(counts_of(rows, lane)):
        found[(*key, "", task, layer)] = (
            node, sum(counts) // lane.top_k, requests, len(rows), len(rows), True, tuple(counts),
            timestamp(min(times)), timestamp(max(times)), 1.0,
        )  # fmt: skip


def timestamp(time_us: int) -> datetime | None:
    """A time as DuckDB gives it."""
    if time_us == NO_TIME:
        return None
    moment = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(tzinfo=None)
    return moment.replace(microsecond=time_us % 1_000_000)
