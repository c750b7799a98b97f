"""Distributions and heatmaps of the baseline's own windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.jobs.charts.heatmap import Field
from moescope.jobs.reports.rows import plain_key, rounded
from moescope.jobs.reports.schema import Distribution, Heat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.jobs.reports.judged_windows import Judged
    from moescope.jobs.reports.rows import Key
    from moescope.jobs.reports.schema import KeyLines, WindowsKey

# Finer towards both ends, where the lines are.
_TAIL = np.linspace(0.0, 0.1, 21)
_SHARES = np.unique(np.concatenate((_TAIL, np.linspace(0.1, 0.9, 41), 1.0 - _TAIL)).round(4))[1:]


def distributions(judged: Judged, shown: Sequence[KeyLines]) -> list[Distribution]:
    """The baseline's values at each metric's worst layer, where windows are stored.

    With more windows than points, the points are quantiles: the least value that at least this
    share of the windows does not exceed.

    Args:
        judged: Windows.
        shown: Kinds of windows and metrics to look at.
    """
    wanted: dict[str, dict[tuple[Key, int], WindowsKey]] = {}
    for each in shown:
        for line in each["lines"]:
            at = plain_key(each["key"]), line["worst_layer"]
            wanted.setdefault(line["metric"], {})[at] = each["key"]
    return [
        _distribution(metric, layer, places[key, layer], pairs)
        for metric, places in wanted.items()
        for (key, layer), pairs in judged.values(metric, list(places)).items()
    ]


def _distribution(
    metric: str, layer: int, key: WindowsKey, pairs: Sequence[tuple[float, float]]
) -> Distribution:
    values, weights = np.array(sorted(pairs), np.float64).T
    shares = np.cumsum(weights) / weights.sum()
    if len(values) > len(_SHARES):
        picked = np.minimum(np.searchsorted(shares, _SHARES - 1e-12), len(values) - 1)
        values, shares = values[picked], _SHARES
    return Distribution(
        key=key,
        metric=metric,
        layer=layer,
        windows=len(pairs),
        values=[rounded(value) or 0.0 for value in values.tolist()],
        shares=[rounded(share) or 0.0 for share in shares.tolist()],
    )


def heat(judged: Judged, key: WindowsKey, metric: str, layers: Sequence[int]) -> Heat | None:
    """How near each window of a kind came to its red line; None where no window is stored."""
    kind = (
        key["phase"], key["window_kind"], key["size"], key["stride"], key["scope_kind"],
    )  # fmt: skip
    cells = judged.cells(metric, kind)
    windows = list(dict.fromkeys(cell[:3] for cell in cells))
    if not windows:
        return None
    column = {window: number for number, window in enumerate(windows)}
    row = {layer: number for number, layer in enumerate(layers)}
    shares = np.full((len(layers), len(windows)), np.nan)
    levels = np.zeros((len(layers), len(windows)), np.int8)
    for *window, layer, way, level in cells:
        at = row[layer], column[tuple(window)]
        shares[at] = np.nan if way is None else way
        levels[at] = level
    field = Field(
        shares=shares,
        levels=levels,
        layers=layers,
        closed=["" if window[0] is None else f"{window[0]:%d %b %H:%M:%S}" for window in windows],
    ).pooled()
    return Heat(
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
