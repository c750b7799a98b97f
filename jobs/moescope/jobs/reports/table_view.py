"""Rows of a report's tables, ready for the template: text alone, worded and rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.core.thresholds import LineSource
from moescope.jobs.reports.sentences import inside_band, unit_name
from moescope.jobs.reports.words import count, counted, figure, percent, windows_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.jobs.reports.schema import Change, Ends, Line, Paging, Rate, WindowsKey

SOURCE_WORDS = {
    LineSource.OWN: "the layer's own windows",
    LineSource.ALL_SCENES: "the layer, all scenes",
    LineSource.LAYER_BAND: "neighbouring layers",
    LineSource.MODEL: "all layers together",
}
_LINE_WORDS = {
    "warn_high": "warn (P90)",
    "red_high": "red (P99)",
    "warn_low": "warn (P10)",
    "red_low": "red (P1)",
}


@dataclass(frozen=True, slots=True)
class At:
    """One line at one layer.

    Attributes:
        side: `above` or `below`: where values are past it.
        quantile: Which one it is.
        value, interval: In words; an end that the evidence does not bound is open.
    """

    side: str
    quantile: str
    value: str
    interval: str


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A metric in the table of a kind of windows; lines are those of the worst layer."""

    name: str
    title: str
    unit: str
    informs_only: bool
    median: str
    warn: list[At]
    red: list[At]
    standing: str
    units: str
    sources: str
    layer: int
    reach: str


def metric_row(key: WindowsKey, line: Line, layers: Sequence[int]) -> MetricRow:
    """The row of a metric."""
    at = list(layers).index(line["worst_layer"])
    unit = unit_name(key["window_kind"])
    return MetricRow(
        name=line["metric"],
        title=line["title"],
        unit=line["unit"],
        informs_only=not line["alerts"],
        median=figure(line["centre"][at]),
        warn=_both(line["warn_high"], line["warn_low"], ("P90", "P10"), at),
        red=_both(line["red_high"], line["red_low"], ("P99", "P1"), at),
        standing=line["standing"],
        units=counted(line["units"], unit),
        sources="; ".join(SOURCE_WORDS[LineSource(source)] for source in line["sources"]),
        layer=line["worst_layer"],
        reach=_reach(line["red_high"] or line["red_low"]),
    )


@dataclass(frozen=True, slots=True)
class RateRow:
    """How often healthy windows are past the lines of a metric."""

    title: str
    name: str
    windows: str
    warn: tuple[str, str]
    red: tuple[str, str]
    warn_far: bool
    red_far: bool

    @property
    def far(self) -> bool:
        """Whether chance does not explain one of the rates."""
        return self.warn_far or self.red_far


def rate_row(rate: Rate, title: str) -> RateRow:
    """The row of a metric; rates that chance does not explain are marked, where that is known."""
    return RateRow(
        title=title,
        name=rate["metric"],
        windows=count(rate["windows"]),
        warn=_banded(rate["warn"], rate["warn_nominal"], rate["warn_band"]),
        red=_banded(rate["red"], rate["red_nominal"], rate["red_band"]),
        warn_far=not inside_band(rate, "warn"),
        red_far=not inside_band(rate, "red"),
    )


@dataclass(frozen=True, slots=True)
class PagingRow:
    """A paging rule in words."""

    windows: str
    scope: str
    family: str
    rule: str
    expected: str
    bound: str


def paging_row(rule: Paging) -> PagingRow:
    """The row of a rule."""
    kind = windows_words(rule["window_kind"], rule["size"], rule["stride"])
    return PagingRow(
        windows=f"{rule['phase']}: {kind[0].lower()}{kind[1:]}",
        scope=rule["scope_kind"],
        family=rule["family"],
        rule=f"worst layer more than {figure(rule['line'])} spreads past red in {rule['needed']} of"
        f" {rule['of_slots']} slots of 5 s",
        expected="unknown: baseline too short"
        if rule["only_bound"]
        else figure(rule["expected_per_day"]),
        bound=figure(rule["bound_per_day"]),
    )


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A line that moved."""

    windows: str
    metric: str
    layer: int
    line: str
    before: str
    after: str
    spreads: str
    beyond: bool


def change_row(change: Change, words: str) -> ChangeRow:
    """The row of a move; `words` say which windows."""
    return ChangeRow(
        windows=words,
        metric=change["metric"],
        layer=change["layer"],
        line=_LINE_WORDS[change["line"]],
        before=figure(change["before"]),
        after=figure(change["after"]),
        spreads=figure(change["in_spreads"]),
        beyond=change["beyond_interval"],
    )


def kind_title(key: WindowsKey) -> str:
    """Heading of a kind of windows within its phase."""
    words = windows_words(key["window_kind"], key["size"], key["stride"])
    scope = {"node": ", per node", "scene": ", per scene"}.get(key["scope_kind"], "")
    return words + scope


def _both(high: Ends | None, low: Ends | None, quantiles: tuple[str, str], at: int) -> list[At]:
    found = []
    for ends, side, quantile in (
        (high, "above", quantiles[0]),
        (low, "below", quantiles[1]),
    ):
        if ends is None or ends["at"][at] is None:
            continue
        known = ends["low"][at] is not None or ends["high"][at] is not None
        interval = f"{_end(ends['low'][at])} … {_end(ends['high'][at])}" if known else "no interval"
        found.append(At(side, quantile, figure(ends["at"][at]), interval))
    return found


def _end(value: float | None) -> str:
    return "open" if value is None else figure(value)


def _reach(ends: Ends | None) -> str:
    known = [] if ends is None else [value for value in ends["at"] if value is not None]
    return f"{figure(min(known))} … {figure(max(known))}" if known else ""


def _banded(rate: float, nominal: float, band: list[float] | None) -> tuple[str, str]:
    words = f"{percent(rate)} (of {percent(nominal)})"
    if band is None:
        return words, ""
    return words, f"chance allows {percent(band[0])} … {percent(band[1])}"
