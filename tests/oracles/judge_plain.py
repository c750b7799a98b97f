"""Judging in plain Python: one value at a time, from the definitions and nothing else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SLOT = 5_000_000


class Line(NamedTuple):
    """Lines of one metric at one layer; NaN where there is none."""

    warn_low: float
    warn_high: float
    red_low: float
    red_high: float
    spread: float


class Window(NamedTuple):
    """What judging needs of a window; `values` by metric and layer, NaN for null."""

    version: str
    values: Mapping[str, Sequence[float]]
    lines: Mapping[str, Sequence[Line]]
    counted: bool
    close_us: int
    start: int
    request: str


def level(value: float, line: Line) -> str:
    """`red`, `warn`, `fine` or `unjudged`."""
    if math.isnan(value) or all(math.isnan(each) for each in line[:4]):
        return "unjudged"
    if value > line.red_high or value < line.red_low:
        return "red"
    return "warn" if value > line.warn_high or value < line.warn_low else "fine"


def exceedance(value: float, line: Line) -> float:
    """Spreads past the red line; −inf where there is none."""
    sides = (value - line.red_high, line.red_low - value)
    return max((each / line.spread for each in sides if not math.isnan(each)), default=-math.inf)


def worst_of_slots(
    windows: Sequence[Window], layers: Sequence[int], families: Mapping[str, Sequence[str]]
) -> dict[tuple[str, int, str], tuple[Any, ...]]:
    """(family, slot, version) → (value, metric, layer, start, request, windows, red, mixed)."""
    found: dict[tuple[str, int, str], list[tuple[Window, bool, bool, list[Any]]]] = {}
    for window in windows:
        if not (window.counted and window.version):
            continue
        mixed = "red" in _levels(window, ["mix_shift"], layers)
        for family, metrics in families.items():
            levels = set(_levels(window, metrics, layers)) - {"unjudged"}
            if not levels:
                continue
            entries = [
                (exceedance(value, window.lines[metric][place]), layer, metric)
                for metric in metrics
                if metric in window.lines
                for place, layer in enumerate(layers)
                if level(value := window.values[metric][place], window.lines[metric][place])
                != "unjudged"
            ]
            entries = [each for each in entries if each[0] > -math.inf]
            if mixed and family != "routing":
                entries = []
            slot = (family, window.close_us // SLOT * SLOT, window.version)
            found.setdefault(slot, []).append((window, "red" in levels, mixed, entries))
    return {slot: _worst(members) for slot, members in found.items()}


def _levels(window: Window, metrics: Sequence[str], layers: Sequence[int]) -> list[str]:
    return [
        level(window.values[metric][place], window.lines[metric][place])
        for metric in metrics
        if metric in window.lines
        for place in range(len(layers))
    ]


def _worst(members: Sequence[tuple[Window, bool, bool, list[Any]]]) -> tuple[Any, ...]:
    candidates = [
        (-value, window.start, window.request, layer, metric)
        for window, _, _, entries in members
        for value, layer, metric in entries
    ] or [(math.inf, *min((window.start, window.request) for window, _, _, _ in members), -1, "")]
    value, start, request, layer, metric = min(candidates)
    red = sum(is_red for _, is_red, _, _ in members)
    mixed = sum(is_mixed for _, _, is_mixed, _ in members)
    return (-value, metric, layer, start, request, len(members), red, mixed)
