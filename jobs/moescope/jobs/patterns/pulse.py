"""`periodic_pulse` (experimental): a lag at which a request's experts come back.

A peak is a lag overlap that stands out from the lags beside it. Neighbouring lags share most of
what decides them (topic, syntax), so their mean is the natural comparison, and what is left is
judged against the same figure of the baseline's windows.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.jobs.patterns.finding import Finding
from moescope.jobs.patterns.stretches import Shown, stretches
from moescope.storage.levels import COVERED

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb
    from numpy.typing import NDArray

SHORTEST_LAG: Final = 8
NEIGHBOURS: Final = (-3, -2, 2, 3)
HEALTHY_SHARE: Final = 0.99
FEWEST_HEALTHY: Final = 100
HALF: Final = 0.5

_WINDOWS = f"""
    SELECT lane, phase, size, start, layer, lag_overlap
    FROM windows
    WHERE window_kind = 'time' AND scope_kind = 'all' AND lag_overlap IS NOT NULL AND {COVERED}
        AND close_time >= make_timestamp(?) AND close_time < make_timestamp(?)
    ORDER BY lane, phase, size, start, layer
"""

_Series = tuple[str, str, int]


def peaks(overlap: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """How far the most prominent lag stands out, and which lag it is.

    Args:
        overlap: float64 [..., LAGS]; entry d − 1 is lag d. NaN where there were no pairs.

    Returns:
        Prominence [...] (the lag's overlap less the mean of its neighbours at distance 2 and 3;
        NaN where no lag has one) and the lag [...].
    """
    lags = overlap.shape[-1]
    tried = np.arange(SHORTEST_LAG, lags + 1 - max(NEIGHBOURS))
    beside = np.stack([overlap[..., tried - 1 + offset] for offset in NEIGHBOURS]).mean(axis=0)
    prominence = overlap[..., tried - 1] - beside
    known = ~np.isnan(prominence)
    best = np.where(known, prominence, -np.inf).argmax(axis=-1)
    value = np.take_along_axis(prominence, best[..., None], axis=-1)[..., 0]
    return value, tried[best]


def periodic_pulse_findings(
    cursor: duckdb.DuckDBPyConnection, from_us: int, to_us: int
) -> Iterator[Finding]:
    """Stretches in which windows pulse more than 99 of 100 healthy ones.

    Without a calibrated version whose baseline has 100 such windows nothing is found.

    Args:
        cursor: For reading.
        from_us: Earliest close time of windows.
        to_us: First close time of windows that is left out.
    """
    lines: dict[_Series, NDArray[np.float64]] = {}
    for begin_us, end_us in _baseline_spans(cursor):
        for series, (_, overlap) in _read(cursor, begin_us, end_us).items():
            if len(overlap) >= FEWEST_HEALTHY:
                values, _ = peaks(overlap)
                lines[series] = np.nanquantile(values, HEALTHY_SHARE, axis=0)
    for series, (starts, overlap) in _read(cursor, from_us, to_us).items():
        if series not in lines:
            continue
        values, lags = peaks(overlap)
        share = (values > lines[series]).mean(axis=1)
        yield from _findings(series, starts, share, lags)


def _findings(
    series: _Series, starts: list[int], share: NDArray[np.float64], lags: NDArray[np.int64]
) -> Iterator[Finding]:
    lane, phase, size = series
    shown = [
        Shown(start, start + size, float(red) if red >= HALF else 0.0)
        for start, red in zip(starts, share, strict=True)
    ]
    for stretch in stretches(shown, 3, 4):
        layers = lags[starts.index(stretch.peak_us)]
        yield Finding(
            pattern="periodic_pulse",
            lane=lane,
            phase=phase,
            scope_kind="all",
            scope_value="",
            window_kind="time",
            size=size,
            began_us=stretch.begin_us,
            ended_us=stretch.end_us,
            confidence=stretch.strength,
            evidence={
                "windows": stretch.windows,
                "peak_start": stretch.peak_us,
                "share_of_layers": stretch.strength,
                "lags": sorted({int(lag) for lag in layers}),
            },
        )


def _read(
    cursor: duckdb.DuckDBPyConnection, from_us: int, to_us: int
) -> dict[_Series, tuple[list[int], NDArray[np.float64]]]:
    """Starts [W] and lag overlaps [W, L, LAGS] by series."""
    grouped: dict[_Series, dict[int, list[Any]]] = {}
    for lane, phase, size, start, _, overlap in cursor.execute(
        _WINDOWS, [from_us, to_us]
    ).fetchall():
        grouped.setdefault((lane, phase, size), {}).setdefault(start, []).append(overlap)
    found = {}
    for series, windows in grouped.items():
        layers = max(len(rows) for rows in windows.values())
        whole = {start: rows for start, rows in windows.items() if len(rows) == layers}
        found[series] = (list(whole), np.array(list(whole.values()), np.float64))
    return found


def _baseline_spans(cursor: duckdb.DuckDBPyConnection) -> list[tuple[int, int]]:
    """Spans of the baselines of active versions."""
    rows = cursor.execute(
        """
        SELECT DISTINCT b.selection_json FROM threshold_versions v
        JOIN baselines b ON b.baseline = v.baseline AND b.version = v.baseline_version
        WHERE v.status = 'active'
        """
    ).fetchall()
    return [
        (int(begin), int(end))
        for (selection,) in rows
        for begin, end in json.loads(selection).get("spans", [])
    ]
