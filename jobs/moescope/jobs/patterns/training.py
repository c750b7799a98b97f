"""`data_order_drift` and `expert_collapse`: step windows against their own run's history."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from moescope.core.tables import LevelReason
from moescope.jobs.patterns.finding import Finding
from moescope.jobs.patterns.training_runs import TrainingRun
from moescope.jobs.statistics.cusum import mean_run_length, upper_cusum
from moescope.storage.levels import COVERED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb
    from numpy.typing import NDArray

HISTORY_WINDOWS: Final = 200
"""A run's history goes back so far: arithmetic over a long run stays bounded."""

FEWEST_WINDOWS: Final = 4
HALF: Final = 0.5
_SURE: Final = 50.0

_ACTIVE = """
    SELECT DISTINCT lane, size FROM windows
    WHERE window_kind = 'step' AND phase = 'train' AND scope_kind = 'all' AND size = stride
        AND close_time >= make_timestamp(?) AND close_time < make_timestamp(?)
    ORDER BY ALL
"""

_HISTORY = f"""
    SELECT start, layer, tokens, requests, scenes, scene_tokens, counts, load_entropy,
        cold_expert_share, epoch_us(first_time) AS first_us, epoch_us(last_time) AS last_us
    FROM windows
    WHERE lane = ? AND size = ? AND stride = size AND window_kind = 'step' AND phase = 'train'
        AND scope_kind = 'all' AND first_time IS NOT NULL
        AND {COVERED} AND level_reason IS DISTINCT FROM '{LevelReason.SUSPICIOUS_ROWS}'
        AND close_time < make_timestamp(?)
    QUALIFY dense_rank() OVER (ORDER BY start DESC) <= ?
    ORDER BY start, layer
"""


class _Windows(NamedTuple):
    """A run, and where its windows lie in steps and in event time, each [W]."""

    run: TrainingRun
    layers: tuple[int, ...]
    start: tuple[int, ...]
    first_us: tuple[int, ...]
    last_us: tuple[int, ...]


def training_findings(
    cursor: duckdb.DuckDBPyConnection, from_us: int, to_us: int
) -> Iterator[Finding]:
    """Findings of `data_order_drift` and `expert_collapse`.

    Args:
        cursor: For reading.
        from_us: Earliest close time of windows; runs with one of these are looked at whole.
        to_us: First close time of windows that is left out.
    """
    for lane, size in cursor.execute(_ACTIVE, [from_us, to_us]).fetchall():
        rows = cursor.execute(_HISTORY, [lane, size, to_us, HISTORY_WINDOWS]).fetchall()
        windows = _windows_of(rows)
        if windows is None:
            continue
        for finding in (_drift(windows), _collapse(windows)):
            if finding is not None:
                pattern, shown, confidence, evidence = finding
                yield Finding(
                    pattern=pattern,
                    lane=lane,
                    phase="train",
                    scope_kind="all",
                    scope_value="",
                    window_kind="step",
                    size=size,
                    began_us=windows.first_us[shown[0]],
                    ended_us=windows.last_us[shown[-1]],
                    confidence=confidence,
                    evidence={
                        "first_step": windows.start[shown[0]],
                        "last_step": windows.start[shown[-1]] + size - 1,
                        "windows": len(shown),
                        **evidence,
                    },
                )


_Shown = tuple[str, list[int], float, dict[str, Any]]


def _drift(windows: _Windows) -> _Shown | None:
    run = windows.run
    shown = np.flatnonzero(run.sources_moved & run.routing_moved).tolist()
    if not shown:
        return None
    sums = upper_cusum(run.mix_scores)
    first = _left_zero(sums, shown[0])
    before = run.sequences[:first].sum(axis=0)
    since = run.sequences[first : shown[-1] + 1].sum(axis=0)
    return (
        "data_order_drift",
        [first, *(window for window in shown if window > first)],
        _confidence(float(sums[shown].max())),
        {
            "sources_before": _shares(run.sources, before),
            "sources_since": _shares(run.sources, since),
            "routing_distance_before": round(float(np.median(run.routing_distance[1:first])), 6)
            if first > 1
            else None,
            "routing_distance_peak": round(float(run.routing_distance[shown].max()), 6),
        },
    )


def _collapse(windows: _Windows) -> _Shown | None:
    run = windows.run
    # What an order of the data does to the load is not the router's fault.
    collapsing = run.collapsing & ~run.sources_moved[:, None]
    shown = np.flatnonzero(collapsing.any(axis=1)).tolist()
    if not shown:
        return None
    layers = np.flatnonzero(collapsing.any(axis=0)).tolist()
    worst = max(layers, key=lambda layer: float(run.entropy_sums[shown, layer].max()))
    sums = run.entropy_sums[:, worst]
    first = _left_zero(sums, int(np.flatnonzero(collapsing[:, worst])[0]))
    return (
        "expert_collapse",
        [first, *(window for window in shown if window > first)],
        # Without sources, an order of the data that narrows the load looks the same.
        _confidence(float(sums[shown].max())) * (1.0 if run.knows_sources else HALF),
        {
            "sources_known": run.knows_sources,
            "layers": [windows.layers[layer] for layer in layers],
            "worst_layer": windows.layers[worst],
            "load_entropy_before": round(float(np.median(run.load_entropy[:first, worst])), 6)
            if first
            else None,
            "load_entropy_last": round(float(run.load_entropy[shown[-1], worst]), 6),
            "cold_experts_last": round(float(run.cold_experts[shown[-1], worst]), 6),
        },
    )


def _left_zero(sums: NDArray[np.float64], alarm: int) -> int:
    """Where the rise began that led to an alarm."""
    zeros = np.flatnonzero(sums[:alarm] == 0)
    return int(zeros[-1]) + 1 if len(zeros) else 0


def _confidence(highest: float) -> float:
    return 1 - 1 / max(1.0, mean_run_length(min(highest, _SURE)))


def _shares(sources: Sequence[str], sequences: NDArray[np.float64]) -> dict[str, float]:
    total = sequences.sum()
    return {
        source: round(float(count / total), 4)
        for source, count in zip(sources, sequences, strict=True)
        if count
    }


def _windows_of(rows: Sequence[tuple[Any, ...]]) -> _Windows | None:
    """The windows that have every layer; None while there are too few."""
    by_start: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        by_start[row[0]].append(row)
    layers = max(
        (tuple(row[1] for row in window) for window in by_start.values()), key=len, default=()
    )
    whole = [window for window in by_start.values() if tuple(row[1] for row in window) == layers]
    if len(whole) < FEWEST_WINDOWS:
        return None
    sources = tuple(sorted({scene for window in whole for scene in window[0][4]}))
    run = TrainingRun(
        sources,
        np.array([_sequences(window[0], sources) for window in whole]),
        np.array([[row[6] for row in window] for window in whole], np.int64),
        np.array([[row[7] for row in window] for window in whole], np.float64),
        np.array([[row[8] for row in window] for window in whole], np.float64),
    )
    return _Windows(
        run,
        layers,
        tuple(window[0][0] for window in whole),
        tuple(window[0][9] for window in whole),
        tuple(window[0][10] for window in whole),
    )


def _sequences(row: tuple[Any, ...], sources: Sequence[str]) -> list[float]:
    """Sequences per source, as sequences of one length have them."""
    _, _, tokens, requests, scenes, scene_tokens = row[:6]
    found = dict(zip(scenes, scene_tokens, strict=True))
    return [requests * found.get(source, 0) / max(tokens, 1) for source in sources]
