"""Warn and red lines of one kind of window, with the fallbacks for few units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.core.metrics import JUDGED_METRICS, Side
from moescope.core.thresholds import LineSource, MetricLines
from moescope.jobs.statistics import (
    RED_UNITS,
    RankedWindows,
    centre_and_spread,
    standing_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from moescope.core.thresholds import LineKey
    from moescope.jobs.calibration.sample import Sample

WARN_SHARE, RED_SHARE = 0.90, 0.99
LEVELS = {
    "warn_low": 1.0 - WARN_SHARE,
    "warn_high": WARN_SHARE,
    "red_low": 1.0 - RED_SHARE,
    "red_high": RED_SHARE,
}
"""Line → level of the quantile; P10 and P1 are the mirror images of P90 and P99."""
_LINES_OF_SIDE = {
    Side.HIGH: ("warn_high", "red_high"),
    Side.LOW: ("warn_low", "red_low"),
    Side.BOTH: ("warn_low", "warn_high", "red_low", "red_high"),
}
_ROUNDING = 1e-9
NEIGHBOURS = 2
"""A layer band is a layer and so many on either side."""


class Ends(NamedTuple):
    """Interval of a line, float64 [L]; infinite: no end on that side; NaN: no line."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedLines:
    """Lines of a metric with what is known about them.

    Attributes:
        lines: As they judge.
        ends: Line (`warn_high`, …) → 95 % interval; only those of the metric's side.
        windows: int64 [L], windows of the key's own that have a value.
    """

    lines: MetricLines
    ends: Mapping[str, Ends]
    windows: NDArray[np.int64]


class _Pool(NamedTuple):
    """Values to take a quantile of: [N, L], weights and units [N]."""

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    units: NDArray[np.int64]


class _LayersRanked(NamedTuple):
    """Some layers, and which column of ranked windows stands behind each."""

    layers: list[int]
    columns: list[int]
    ranked: RankedWindows


class _Standardised:
    """All windows of a band, each in the spreads of its own scene and layer.

    What was worked out is kept: every scene of the band takes the same quantiles.

    Attributes:
        units: Behind the pool.
    """

    def __init__(self, pool: _Pool) -> None:
        self.units = _count_units(pool)
        self._pool = pool
        self._ranked: dict[LineSource, list[_LayersRanked]] = {}
        self._known: dict[tuple[float, LineSource], tuple[NDArray[np.float64], ...]] = {}

    def quantile(self, p: float, source: LineSource) -> tuple[NDArray[np.float64], ...]:
        """Value, lower and upper end, float64 [L] each."""
        if (p, source) not in self._known:
            if source not in self._ranked:
                self._ranked[source] = list(_ranked_by_layer(self._pool, source))
            found = np.empty((3, self._pool.values.shape[1]))
            for each in self._ranked[source]:
                found[:, each.layers] = np.stack(each.ranked.quantiles(p))[:, each.columns]
            self._known[p, source] = tuple(found)
        return self._known[p, source]


def lines_of(sample: Sample, minimum_units: int) -> dict[LineKey, dict[str, EstimatedLines]]:
    """Lines of every key and metric of one kind of window.

    With at least 299 units a key's lines are quantiles of its own windows, layer by layer. With
    fewer, but `minimum_units`, they are its own median plus so many spreads, and that number is a
    quantile of standardised values: of the layer over all scenes if these have 299 units;
    else of the layer and its neighbours, if the units times these layers reach 299; else of all
    layers. Layers share their requests, so pooling them adds values to the tail and no units:
    such lines stay provisional.

    Args:
        sample: Windows, units and values.
        minimum_units: Keys with fewer get no lines.
    """
    found: dict[LineKey, dict[str, EstimatedLines]] = {}
    cells = list(sample.cells())
    for metric in JUDGED_METRICS:
        values = sample.values.get(metric.name)
        if values is None or np.isnan(values).all():
            continue
        standardised: dict[str, _Standardised] = {}
        owns = {key: _own(sample, values, member) for key, member in cells}
        for key, own in owns.items():
            if own.units < minimum_units:
                continue
            if own.units < RED_UNITS and key.band not in standardised:
                in_band = {each: other for each, other in owns.items() if each.band == key.band}
                standardised[key.band] = _standardised(sample, values, in_band, minimum_units)
            lines = _estimate(own, standardised.get(key.band), _LINES_OF_SIDE[metric.side])
            found.setdefault(key, {})[metric.name] = lines
    return found


class _Own(NamedTuple):
    """Windows of one key that have a value.

    Attributes:
        member: bool [W], windows of the key.
        units: Behind the pool.
        centre, spread: float64 [L].
    """

    member: NDArray[np.bool_]
    pool: _Pool
    units: int
    centre: NDArray[np.float64]
    spread: NDArray[np.float64]


def _own(sample: Sample, values: NDArray[np.float64], member: NDArray[np.bool_]) -> _Own:
    pool = _pool(sample, values, member)
    return _Own(member, pool, _count_units(pool), *centre_and_spread(pool.values, pool.weights))


def _pool(sample: Sample, values: NDArray[np.float64], member: NDArray[np.bool_]) -> _Pool:
    known = member & ~np.isnan(values).all(axis=1)
    return _Pool(values[known], sample.windows.weight[known], sample.units[known])


def _count_units(pool: _Pool) -> int:
    return len(np.unique(pool.units))


def _standardised(
    sample: Sample,
    values: NDArray[np.float64],
    owns: Mapping[LineKey, _Own],
    minimum_units: int,
) -> _Standardised:
    """Standardise the windows of a band scene by scene, where a scene has enough units."""
    scaled = np.full(values.shape, np.nan)
    for key, own in sorted(owns.items(), key=lambda each: each[0].scene):
        # Scene "" comes first, and holds what no scene of its own overwrites.
        if key.scene and own.units < minimum_units:
            continue
        if len(own.pool.values):
            scaled[own.member] = (values[own.member] - own.centre) / own.spread
    return _Standardised(_pool(sample, scaled, np.ones(len(values), np.bool_)))


def _estimate(
    own: _Own, standardised: _Standardised | None, wanted: tuple[str, ...]
) -> EstimatedLines:
    centre, spread, units = own.centre, own.spread, own.units
    layers = len(centre)
    source = LineSource.OWN
    quantiles = {}
    if units >= RED_UNITS or standardised is None:
        ranked = RankedWindows(*own.pool)
        for name in wanted:
            quantiles[name] = tuple(ranked.quantiles(LEVELS[name]))
    else:
        units = standardised.units
        source = _source(units, layers)
        for name in wanted:
            # Outward: a value that equals the line must not be past it by a rounding error.
            outward = _ROUNDING if LEVELS[name] > 0.5 else -_ROUNDING  # noqa: PLR2004 - the median
            quantiles[name] = tuple(
                centre + spread * (each + outward)
                for each in standardised.quantile(LEVELS[name], source)
            )
    none = np.full(layers, np.nan)
    values = {name: quantiles[name][0] if name in quantiles else none for name in LEVELS}
    return EstimatedLines(
        lines=MetricLines(
            **values,
            centre=centre,
            spread=spread,
            standing=standing_of(units),
            source=source,
            units=units,
        ),
        ends={name: Ends(low, high) for name, (_, low, high) in quantiles.items()},
        windows=(~np.isnan(own.pool.values)).sum(axis=0),
    )


def _source(units: int, layers: int) -> LineSource:
    if units >= RED_UNITS:
        return LineSource.ALL_SCENES
    width = min(2 * NEIGHBOURS + 1, layers)
    return LineSource.LAYER_BAND if units * width >= RED_UNITS else LineSource.MODEL


def layer_spans(layers: int, source: LineSource) -> list[tuple[int, int]]:
    """From which layers on, and up to which one, each layer's tail is taken."""
    reach = {LineSource.LAYER_BAND: NEIGHBOURS, LineSource.MODEL: layers}.get(source, 0)
    return [(max(at - reach, 0), min(at + reach + 1, layers)) for at in range(layers)]


def _ranked_by_layer(pool: _Pool, source: LineSource) -> Iterator[_LayersRanked]:
    """The windows behind the lines of each layer; layers with equally many are ranked together."""
    layers = pool.values.shape[1]
    everywhere = list(range(layers))
    if source is LineSource.ALL_SCENES:
        yield _LayersRanked(everywhere, everywhere, RankedWindows(*pool))
        return
    spans = layer_spans(layers, source)
    for width in sorted({end - begin for begin, end in spans}):
        alike = [at for at in everywhere if spans[at][1] - spans[at][0] == width]
        columns = list(dict.fromkeys(spans[at] for at in alike))
        values = np.stack([pool.values[:, slice(*span)].reshape(-1) for span in columns], axis=1)
        weights, units = np.repeat(pool.weights, width), np.repeat(pool.units, width)
        yield _LayersRanked(
            alike,
            [columns.index(spans[at]) for at in alike],
            RankedWindows(values, weights, units),
        )
