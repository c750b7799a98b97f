"""Detectors that need nothing but the levels of time windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from moescope.jobs.patterns.finding import Finding
from moescope.jobs.patterns.shares import window_shares
from moescope.jobs.patterns.stretches import Shown, stretches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import duckdb

    from moescope.jobs.patterns.shares import Series, WindowShares

LONGEST_COLLISION_US: Final = 5_000_000
MINUTE_US: Final = 60_000_000


class _Rule(NamedTuple):
    pattern: str
    needed: int
    of: int
    applies: Callable[[Series], bool]
    strength: Callable[[WindowShares], float]
    shown: tuple[str, ...]


def _agreement(window: WindowShares) -> float:
    return window.red["positional_agreement"] if window.is_red("positional_agreement") else 0.0


def _collision(window: WindowShares) -> float:
    together = window.is_red("positional_agreement") and window.is_red("routing_shift")
    alike = window.is_red("request_similarity") and not window.is_red("mix_shift")
    return window.red["request_similarity"] if together and alike else 0.0


def _mixed(window: WindowShares) -> float:
    mixed = window.is_red("mix_shift") and not window.is_red("routing_shift")
    return window.red["mix_shift"] if mixed else 0.0


_RULES: Final = (
    _Rule(
        "fixed_prefix",
        4,
        5,
        lambda series: series.scope_kind == "all" and series.size == LONGEST_COLLISION_US,
        _agreement,
        ("positional_agreement",),
    ),
    _Rule(
        "fixed_prefix",
        2,
        3,
        lambda series: series.scope_kind == "all" and series.size == MINUTE_US,
        _agreement,
        ("positional_agreement",),
    ),
    _Rule(
        "concurrency_collision",
        2,
        4,
        lambda series: series.scope_kind == "all" and series.size <= LONGEST_COLLISION_US,
        _collision,
        ("request_similarity", "positional_agreement", "routing_shift", "mix_shift"),
    ),
    _Rule(
        "mix_shift",
        3,
        4,
        lambda series: series.scope_kind in {"all", "node"},
        _mixed,
        ("mix_shift", "routing_shift"),
    ),
)


def time_window_findings(
    cursor: duckdb.DuckDBPyConnection, from_us: int, to_us: int
) -> Iterator[Finding]:
    """Findings of `fixed_prefix`, `concurrency_collision` and `mix_shift`.

    Args:
        cursor: For reading.
        from_us: Earliest close time of windows.
        to_us: First close time of windows that is left out.
    """
    for series, windows in window_shares(cursor, from_us, to_us):
        by_begin = {window.begin_us: window for window in windows}
        for rule in _RULES:
            if not rule.applies(series):
                continue
            shown = [
                Shown(window.begin_us, window.begin_us + series.size, rule.strength(window))
                for window in windows
            ]
            for stretch in stretches(shown, rule.needed, rule.of):
                peak = by_begin[stretch.peak_us]
                yield Finding(
                    pattern=rule.pattern,
                    lane=series.lane,
                    phase=series.phase,
                    scope_kind=series.scope_kind,
                    scope_value=series.scope_value,
                    window_kind="time",
                    size=series.size,
                    began_us=stretch.begin_us,
                    ended_us=stretch.end_us,
                    confidence=stretch.strength,
                    evidence={
                        "windows": stretch.windows,
                        "peak_start": stretch.peak_us,
                        "red_share_of_layers": {name: peak.red[name] for name in rule.shown},
                        "mean": {
                            name: round(peak.mean[name], 6)
                            for name in rule.shown
                            if name in peak.mean
                        },
                    },
                )
