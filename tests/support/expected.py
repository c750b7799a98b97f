"""What the plain-Python roll-up expects, in the form of `support.rolled_up`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oracles.metrics_plain import count_metrics, divergence, smoothed
from oracles.windows_plain import (
    MINUTE,
    NO_TIME,
    PERIOD,
    PHASE_NAMES,
    SECOND,
    SIMILARITY_US,
    Accepted,
    Lane,
    Partition,
    Record,
    TokenWindow,
    counts_of,
    exponent,
    lags_of,
    passes_of,
    positions_of,
    router_of,
    rows_closed_per_minute,
    similarity_of,
    step_windows,
    time_windows,
    trailing_references,
)
from support.rolled_up import nested, windows_of_panes

from moescope.processors.lags import is_lag_sampled
from moescope.processors.row_sampling import keep_hash
from moescope.processors.similarity import similarity_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.rolled_up import Key, Value

    from moescope.processors.config import WindowConfig


@dataclass
class Expected:
    """The oracle's windows and accounts."""

    token: Counter[Value]
    panes: dict[Key, Value]
    accounts: dict[int, tuple[int, ...]]
    dead_letters: list[int]
    partition: Partition
    references: dict[Any, list[list[int]]]
    positions: dict[Key, Value]
    lags: dict[Key, Value]
    similarity: dict[Key, Value]
    passes: dict[Key, Value]


def read(records: Sequence[Record], config: WindowConfig) -> Partition:
    """A sealed partition, read to its end."""
    partition = Partition(config.token)
    for record in records:
        partition.read(record)
    partition.seal()
    return partition


def expected_outcome(records: Sequence[Record], config: WindowConfig) -> Expected:
    """Roll records up in plain Python."""
    partition = read(records, config)
    references = trailing_references(
        partition.accepted,
        max((w.close_time or 0 for w in partition.windows), default=0) // PERIOD,
    )
    closed = rows_closed_per_minute(partition.windows)
    token = Counter(
        _token(window, _weight(window, closed, config.row_budget), references)
        for window in partition.windows
    )
    accounts: dict[int, tuple[int, ...]] = {
        offset: (
            a.rows, a.accepted, a.context, a.padding, a.recomputed, a.stale, a.late,
            a.uncounted_phase, a.suspicious,
        )
        for offset, a in enumerate(partition.accounts)
        if a.verdict == "duplicate" or (a.verdict == "accepted" and a.rows)
    }  # fmt: skip
    dead = [n for n, a in enumerate(partition.accounts) if a.verdict == "dead_letter"]
    return Expected(
        token, _panes(partition.accepted, config), accounts, dead, partition, references,
        *_profiles(partition.accepted, config), _similarity(partition, config),
        _passes(partition, config),
    )  # fmt: skip


def _profiles(
    accepted: Sequence[Accepted], config: WindowConfig
) -> tuple[dict[Key, Value], dict[Key, Value]]:
    """Positions and lags by (lane, phase, second)."""
    positions, lags = {}, {}
    for (lane, phase, kind, _, start), rows in time_windows(accepted, SECOND, SECOND).items():
        if kind != "all":
            continue
        key = (lane.revision, PHASE_NAMES[phase], start)
        at_positions = positions_of(rows)
        if at_positions:
            positions[key] = tuple(sorted(at_positions.items()))
        sampled = [one for one in rows if is_lag_sampled(one.row.request, config.lag_ratio)]
        sums = lags_of(sampled, lane)
        if any(pairs for layer in sums for _, pairs in layer):
            lags[key] = nested_pairs(sums)
    return positions, lags


def _passes(partition: Partition, config: WindowConfig) -> dict[Key, Value]:
    """Passes, sum and greatest of their imbalances, per pane and layer."""
    found = passes_of(partition.accepted, partition.executed, config.step_pane)
    return {
        (kind, lane.revision, PHASE_NAMES[phase], scope, value, start): tuple(
            (len(each), sum(each), max(each, default=0)) for each in layers
        )
        for (kind, lane, phase, scope, value, start), layers in found.items()
    }


def _similarity(partition: Partition, config: WindowConfig) -> dict[Key, Value]:
    """Similarity sums by (lane, phase, start)."""
    found = {}
    for (lane, phase, number), rows in partition.similarity.items():
        by_request: dict[str, list[Accepted]] = {}
        for one in rows:
            by_request.setdefault(one.row.request, []).append(one)
        chosen = sorted(by_request, key=similarity_hash)[: config.similarity_requests]
        sums = similarity_of([by_request[name] for name in chosen], lane, config.similarity_tokens)
        if any(requests or left_out for _, _, requests, left_out in sums):
            key = (lane.revision, PHASE_NAMES[phase], number * SIMILARITY_US[phase])
            found[key] = tuple((tuple(total), *rest) for total, *rest in sums)
    return found


def nested_pairs(sums: list[list[tuple[int, int]]]) -> Value:
    """Lag sums as (overlaps, pairs), each by layer."""
    return tuple(nested([[both[each] for both in layer] for layer in sums]) for each in (0, 1))


def expected_values(
    window: Value, lane: Lane, references: dict[Any, list[list[int]]]
) -> list[dict[str, float | None]]:
    """Metric values per layer of a token window, noise floors left out."""
    phase, period = PHASE_NAMES.index(window[1]), window[17]
    trailing = references[lane, phase, int(period)] if period else None
    found = []
    for layer, counts in enumerate(window[16]):
        values = count_metrics(counts, lane.top_k)
        named = {
            "uniform": [0] * lane.experts,
            "trailing": None if trailing is None else trailing[layer],
        }
        for name, reference in named.items():
            js, kl = None, None
            if reference is not None and sum(counts):
                js, kl = divergence(counts, smoothed(reference))
            values |= {f"js_{name}": js, f"kl_{name}": kl}
        found.append(values)
    return found


def _weight(window: TokenWindow, closed: Counter[int], budget: int) -> float:
    if window.first_time is None:
        return 1.0
    j = exponent(closed[window.first_time // MINUTE - 2], budget)
    return float(2**j) if keep_hash(window.request) < 2 ** (64 - j) else 0.0


def _token(window: TokenWindow, weight: float, references: dict[Any, list[list[int]]]) -> Value:
    first, last = window.rows[0].row, window.rows[-1].row
    close = window.close_time
    period = "" if close is None else str(close // PERIOD)
    has_reference = close is not None and (window.lane, window.phase, close // PERIOD) in references
    return (
        window.lane.revision,
        PHASE_NAMES[window.phase],
        window.size,
        window.stride,
        window.anchor + window.first_position,
        window.request,
        first.task,
        window.rows[0].node,
        len(window.rows),
        window.expected,
        window.complete,
        window.reason,
        NO_TIME if first.time is None else first.time,
        NO_TIME if last.time is None else last.time,
        NO_TIME if close is None else close,
        weight,
        nested(counts_of(window.rows, window.lane)),
        period if has_reference else "",
        nested(router_of(window.rows, window.lane)),
        ((window.rows[-1].row.scene or "unknown", len(window.rows)),),
    )


def _panes(accepted: Sequence[Accepted], config: WindowConfig) -> dict[Key, Value]:
    found: dict[Key, Value] = {}
    for size, slide in config.time:
        for (lane, phase, kind, value, start), rows in time_windows(accepted, size, slide).items():
            scope = (value or "unknown") if kind == "scene" else value
            key = ("time", size, slide, lane.revision, PHASE_NAMES[phase], kind, scope, start)
            found[key] = _summed(rows, lane)
    for size, stride in config.step:
        for (lane, phase, start), rows in step_windows(accepted, size, stride).items():
            key = ("step", size, stride, lane.revision, PHASE_NAMES[phase], "all", "", start)
            found[key] = _summed(rows, lane)
    return found


def _summed(rows: list[Accepted], lane: Lane) -> Value:
    times = [NO_TIME if one.row.time is None else one.row.time for one in rows]
    requests = len({(one.row.request, one.life) for one in rows})
    return (
        nested(counts_of(rows, lane)), len(rows), requests, min(times), max(times),
        nested(router_of(rows, lane)),
    )  # fmt: skip


def expected_panes(panes: dict[Key, Value], config: WindowConfig) -> dict[Key, Value]:
    """Windows from an engine's panes, keyed like the oracle's."""
    found: dict[Key, Value] = {}
    for kind, declared, unit in (("time", config.time, 1_000_000), ("step", config.step, 1)):
        for size, stride in declared:
            for key, value in windows_of_panes(panes, kind, size, stride, unit).items():
                found[kind, size, stride, *key] = value
    return found
