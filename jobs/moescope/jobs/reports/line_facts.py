"""Lines of a version, per kind of window and metric, layer by layer."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.metrics import BY_NAME, METRIC_NAMES, Side
from moescope.core.thresholds import LineSource, Standing
from moescope.jobs.reports.rows import KEY, KEY_SQL, fetch, rounded, windows_key
from moescope.jobs.reports.schema import Ends, KeyLines, Line
from moescope.jobs.reports.words import key_words

if TYPE_CHECKING:
    import duckdb

    from moescope.jobs.reports.rows import Head

LINE_NAMES = ("warn_low", "red_low", "warn_high", "red_high")
_ENDS = tuple(f"{name}{part}" for name in LINE_NAMES for part in ("", "_from", "_to"))
_NUMBERS = ("centre", "spread", *_ENDS)
_SOURCES = [str(source) for source in LineSource]
_PHASES = ("prefill", "decode", "eval", "train")
_KINDS = ("token", "time", "task", "step")


def line_facts(cursor: duckdb.DuckDBPyConnection, head: Head) -> list[KeyLines]:
    """All lines, prefill before decode, token windows before time windows, small before large."""
    lists = ", ".join(f"list({name} ORDER BY layer)" for name in _NUMBERS)
    rows = fetch(
        cursor,
        f"SELECT {KEY_SQL}, metric, list(layer ORDER BY layer),"
        f" bool_and(standing = ?), list(DISTINCT source), min(units), min(windows), {lists}"
        f" FROM thresholds WHERE version = ? GROUP BY {KEY_SQL}, metric",
        [Standing.FIRM, head.version],
    )
    rows.sort(key=_reading_order)
    width = len(KEY)
    judged = []
    for key, group in groupby(rows, key=lambda row: row[:width]):
        named = windows_key(key)
        lines = [_line(row[width:], head.layers) for row in group]
        judged.append(KeyLines(key=named, words=key_words(named), lines=lines))
    return judged


def _line(row: tuple[Any, ...], layers: list[int]) -> Line:
    name, there, firm, sources, units, windows, *lists = row
    metric = BY_NAME[name]
    place = {layer: number for number, layer in enumerate(layers)}
    numbers: dict[str, list[float | None]] = {}
    for column, values in zip(_NUMBERS, lists, strict=True):
        spread_out: list[float | None] = [None] * len(layers)
        for layer, value in zip(there, values, strict=True):
            spread_out[place[layer]] = rounded(value)
        numbers[column] = spread_out
    ends = {each: _ends(numbers, each) for each in LINE_NAMES}
    return Line(
        metric=name,
        title=metric.title,
        unit=metric.unit,
        side=str(metric.side),
        alerts=metric.alerts,
        standing=str(Standing.FIRM if firm else Standing.PROVISIONAL),
        sources=sorted(sources, key=_SOURCES.index),
        units=units,
        windows=windows,
        worst_layer=_worst_layer(metric.side, numbers, layers),
        centre=numbers["centre"],
        spread=numbers["spread"],
        warn_high=ends["warn_high"],
        red_high=ends["red_high"],
        warn_low=ends["warn_low"],
        red_low=ends["red_low"],
    )


def _ends(numbers: dict[str, list[float | None]], name: str) -> Ends | None:
    at = numbers[name]
    if all(value is None for value in at):
        return None
    return Ends(at=at, low=numbers[f"{name}_from"], high=numbers[f"{name}_to"])


def _worst_layer(side: Side, numbers: dict[str, list[float | None]], layers: list[int]) -> int:
    """Where healthy traffic goes farthest: the layer of the outermost red (else warn) line."""
    low = side is Side.LOW
    for name in ("red_low", "warn_low", "centre") if low else ("red_high", "warn_high", "centre"):
        values = np.array([np.nan if v is None else v for v in numbers[name]])
        if np.isfinite(values).any():
            return layers[int(np.nanargmin(values) if low else np.nanargmax(values))]
    return layers[0]


def _reading_order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    phase, kind, size, stride, scope_kind, scene, band, metric = row[: len(KEY) + 1]
    return (
        _place(_PHASES, phase),
        phase,
        _place(_KINDS, kind),
        kind,
        size,
        stride,
        scope_kind,
        scene,
        [int(part) if part.isdigit() else 0 for part in band.split(":")],
        band,
        METRIC_NAMES.index(metric),
    )


def _place(known: tuple[str, ...], word: str) -> int:
    return known.index(word) if word in known else len(known)
