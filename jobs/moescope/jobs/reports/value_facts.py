"""Distributions and heatmaps of the baseline's own windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.jobs.charts.heatmap import Field
from moescope.jobs.reports.rows import plain_key, rounded
from moescope.jobs.reports.schema import Distribution, Heat
from moescope.jobs.reports.sections import kind_of
from moescope.jobs.reports.sentences import main_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.jobs.reports.judged_windows import Judged, KindWindows, LayerRate
    from moescope.jobs.reports.schema import KeyLines, Line, WindowsKey

# Finer towards both ends, where the lines are.
_TAIL = np.linspace(0.0, 0.1, 21)
_SHARES = np.unique(np.concatenate((_TAIL, np.linspace(0.1, 0.9, 41), 1.0 - _TAIL)).round(4))[1:]


class WindowFacts(NamedTuple):
    """What the stored windows of a baseline show.

    Attributes:
        rates: Metric → how often windows of each key are past its lines.
        distributions: Of what is shown, at each metric's worst layer.
        heats: Of what is shown.
    """

    rates: dict[str, list[LayerRate]]
    distributions: list[Distribution]
    heats: list[Heat]


def window_facts(
    judged: Judged, lines: Sequence[KeyLines], shown: Sequence[KeyLines], most_heats: int
) -> WindowFacts:
    """Read the windows once, kind by kind, and keep what is reported of them.

    Args:
        judged: Windows.
        lines: All lines of the version.
        shown: Keys to show in full, at most one per kind of window.
        most_heats: Of so many of them there are heatmaps.
    """
    metrics = list(dict.fromkeys(line["metric"] for each in lines for line in each["lines"]))
    of_kind = {kind_of(each["key"]): each for each in shown}
    heated = {kind_of(each["key"]) for each in shown[:most_heats]}
    rates: dict[str, list[LayerRate]] = {metric: [] for metric in metrics}
    values: dict[str, list[Distribution]] = {}
    heats: list[Heat] = []
    for kind, main in of_kind.items():
        windows = judged.read(kind, metrics)
        for metric in windows.metrics:
            rates[metric] += windows.rates(metric)
        for line in main["lines"]:
            found = _distribution(windows, main["key"], line)
            if found is not None:
                values.setdefault(line["metric"], []).append(found)
        if kind in heated:
            heats += _heat(windows, main["key"], main_line(main["lines"])["metric"])
    named = dict.fromkeys(line["metric"] for each in shown for line in each["lines"])
    return WindowFacts(
        rates={metric: sorted(each) for metric, each in rates.items()},
        distributions=[each for metric in named for each in values.get(metric, [])],
        heats=heats,
    )


def _distribution(windows: KindWindows, key: WindowsKey, line: Line) -> Distribution | None:
    """The baseline's values at a metric's worst layer; None where no window is stored.

    With more windows than points, the points are quantiles: the least value that at least this
    share of the windows does not exceed.
    """
    metric, layer = line["metric"], line["worst_layer"]
    values, weights = windows.values(windows.judged(metric), plain_key(key), layer)
    if not len(values):
        return None
    order = np.lexsort((weights, values))
    values, weights = values[order], weights[order]
    number = len(values)
    shares = np.cumsum(weights) / weights.sum()
    if number > len(_SHARES):
        picked = np.minimum(np.searchsorted(shares, _SHARES - 1e-12), number - 1)
        values, shares = values[picked], _SHARES
    return Distribution(
        key=key,
        metric=metric,
        layer=layer,
        windows=number,
        values=[rounded(value) or 0.0 for value in values.tolist()],
        shares=[rounded(share) or 0.0 for share in shares.tolist()],
    )


def _heat(windows: KindWindows, key: WindowsKey, metric: str) -> list[Heat]:
    """How near each window of a kind came to its red line; empty where no window is stored."""
    rows = windows.judged(metric)
    if not len(rows.row):
        return []
    layer, column, closed = windows.columns(rows)
    shares = np.full((len(windows.layers), len(closed)), np.nan)
    levels = np.zeros(shares.shape, np.int8)
    shares[layer, column] = rows.way
    levels[layer, column] = rows.level
    field = Field(
        shares=shares,
        levels=levels,
        layers=windows.layers,
        closed=["" if each is None else f"{each:%d %b %H:%M:%S}" for each in closed],
    ).pooled()
    return [
        Heat(
            key=key,
            metric=metric,
            closed=list(field.closed),
            per_column=field.per_column,
            shares=[
                [None if np.isnan(share) else round(share, 2) for share in each]
                for each in field.shares.tolist()
            ],
            levels=field.levels.tolist(),
        )
    ]


def field_of(report_heat: Heat, layers: Sequence[int]) -> Field:
    """The cells of a reported heatmap."""
    shares = [
        [np.nan if share is None else share for share in each] for each in report_heat["shares"]
    ]
    return Field(
        shares=np.array(shares, np.float64),
        levels=np.array(report_heat["levels"], np.int8),
        layers=layers,
        closed=report_heat["closed"],
        per_column=report_heat["per_column"],
    )
