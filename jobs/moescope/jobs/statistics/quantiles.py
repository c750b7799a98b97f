"""Quantiles of weighted windows, and intervals that know which windows belong together."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moescope.jobs.statistics.binomial import explained_levels

Values = NDArray[np.float64]

CONFIDENCE = 0.95
_ROUNDING = 1e-9
_TIE_SEED = 20_251
_TWO_UNITS = 2


class Quantiles(NamedTuple):
    """A quantile of each column, with its interval; float64 [L].

    Attributes:
        value: NaN where there are too few values for the rank.
        low: Lower end of the interval; −inf where the values bound it from above only.
        high: Upper end; inf where too few units lie above for any bound.
    """

    value: Values
    low: Values
    high: Values


def weighted_quantile(values: Values, p: float, weights: Values | None = None) -> Values:
    """The plain quantile of each column: the smallest value with at least a share p at or below.

    Args:
        values: float64 [N, …]; NaN is left out.
        p: 0 < p ≤ 1.
        weights: float64 [N], not negative.

    Returns:
        float64 […]; NaN for columns without values.
    """
    flat = values.reshape(len(values), -1)
    order = np.argsort(flat, axis=0, kind="stable")
    ranked = np.take_along_axis(flat, order, axis=0)
    if weights is None:
        present = (~np.isnan(flat)).sum(axis=0)
        rank = np.maximum(np.ceil(present * p - _ROUNDING).astype(np.int64), 1) - 1
    else:
        share = np.where(np.isnan(ranked), 0.0, weights[order])
        below = share.cumsum(axis=0)
        total = below[-1] if len(below) else np.zeros(flat.shape[1])
        rank = (below < total * (p - _ROUNDING)).sum(axis=0)
        present = (~np.isnan(flat) & (weights[:, None] > 0)).sum(axis=0)
    if not len(ranked):
        return np.full(values.shape[1:], np.nan)
    rank = np.minimum(rank, len(ranked) - 1)
    found = np.where(present > 0, ranked[rank, np.arange(flat.shape[1])], np.nan)
    result: Values = found.reshape(values.shape[1:])
    return result


def cluster_quantiles(
    values: Values,
    weights: Values,
    units: NDArray[np.int64],
    p: float,
    *,
    confidence: float = CONFIDENCE,
) -> Quantiles:
    """The value of rank ⌈(n + 1)p⌉ of each column, with an interval for the quantile.

    Below the true quantile lies a share F of the windows that varies around p. Its variance is
    that of Σ G_c over units, with G_c = the unit's weight at or below the quantile − p × its
    weight: what resampling whole units gives, in closed form. It makes the windows worth
    n_e = p(1 − p)/Var(F) independent ones, at most as many as there are (weights counted as
    Kish does), and fewer by (z/t)² where units are few. An order statistic is inside of the
    interval when its share is one that Bin(n_e, p)/n_e takes without surprise.

    Args:
        values: float64 [N, L]; NaN is left out.
        weights: float64 [N], how many windows each stands for; positive.
        units: int64 [N], sampling unit of each row, from 0.
        p: Level of the quantile; over ½ the usual rank, below ½ its mirror image
            (⌊(n + 1)p⌋, the rank that is as far from the other end).
        confidence: Of the two-sided interval.
    """
    if p < 0.5:  # noqa: PLR2004
        upper = cluster_quantiles(-values, weights, units, 1.0 - p, confidence=confidence)
        return Quantiles(-upper.value, -upper.high, -upper.low)
    rows, columns = values.shape
    if not rows:
        return Quantiles(*(np.full(columns, np.nan) for _ in Quantiles._fields))
    # Equal values are put in an order that has nothing to do with their units.
    shuffled = np.random.default_rng(_TIE_SEED).permutation(rows)
    values, weights, units = values[shuffled], weights[shuffled], units[shuffled]
    present = ~np.isnan(values)
    order = np.argsort(np.where(present, values, np.inf), axis=0, kind="stable")
    ranked = np.take_along_axis(values, order, axis=0)
    share = np.take_along_axis(np.where(present, weights[:, None], 0.0), order, axis=0)
    below = share.cumsum(axis=0)
    total = below[-1]
    number = present.sum(axis=0)
    column = np.arange(columns)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = total * (1.0 + 1.0 / number) * p
        effective = _effective_draws(order, share, below, units, p)
        effective = np.minimum(effective, total**2 / (share**2).sum(axis=0))
    effective = effective * _few_units(units, share, order, confidence)

    def picked(rank: NDArray[np.int64], beyond: float) -> Values:
        """Order statistics by rank from 0; `beyond` past the last."""
        inside = (rank >= 0) & (rank < number)
        return np.where(inside, ranked[np.clip(rank, 0, rows - 1), column], beyond)

    slack = _ROUNDING * np.maximum(total, 1.0)
    value = picked((below < whole - slack).sum(axis=0), np.nan)
    levels = explained_levels(np.nan_to_num(effective, nan=1.0), p, (1.0 - confidence) / 2.0)
    low = picked((below < levels.low * total - slack).sum(axis=0), -np.inf)
    high = picked((below <= levels.high * total + slack).sum(axis=0), np.inf)
    known = ~np.isnan(value)
    return Quantiles(value, np.where(known, low, np.nan), np.where(known, high, np.nan))


def _effective_draws(
    order: NDArray[np.int64], share: Values, below: Values, units: NDArray[np.int64], p: float
) -> Values:
    """p(1 − p)/Var(F) of each column, with the variance between units at the quantile.

    The level p falls inside of one window's weight; the variance is interpolated between those
    with that window counted below and above.
    """
    rows, columns = order.shape
    count = int(units.max()) + 1
    total = below[-1]
    last = np.minimum((below < total * p * (1.0 - _ROUNDING)).sum(axis=0), rows - 1)
    column = np.arange(columns)
    place = units[order] * columns + column
    mass = np.bincount(place.ravel(), share.ravel(), count * columns).reshape(count, columns)
    counted = np.where(np.arange(rows)[:, None] <= last, share, 0.0)
    under = np.bincount(place.ravel(), counted.ravel(), count * columns).reshape(count, columns)
    gap = under - p * mass
    boundary, edge = share[last, column], gap[units[order[last, column]], column]
    variance = (gap**2).sum(axis=0)
    without = variance - edge**2 + (edge - boundary) ** 2
    part = np.clip((below[last, column] - total * p) / boundary, 0.0, 1.0)
    seen = (mass > 0).sum(axis=0)
    variance = ((1.0 - part) * variance + part * without) * seen / np.maximum(seen - 1, 1)
    effective: Values = p * (1.0 - p) * total**2 / np.maximum(variance, _ROUNDING)
    return effective


def _few_units(
    units: NDArray[np.int64], share: Values, order: NDArray[np.int64], confidence: float
) -> Values:
    """(z/t)²: a variance known from few units only makes the windows worth less."""
    columns = order.shape[1]
    place = units[order] * columns + np.arange(columns)
    seen = np.zeros((int(units.max()) + 1) * columns, np.bool_)
    seen[place[share > 0]] = True
    freedom = np.maximum(seen.reshape(-1, columns).sum(axis=0) - 1, _TWO_UNITS - 1)
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    worth: Values = (z / student_quantile(freedom, z)) ** 2
    return worth


def student_quantile(freedom: NDArray[np.int64] | int, z: float) -> Values:
    """Student's t at the level where a normal is z (Cornish–Fisher; Abramowitz & Stegun 26.7.5).

    Within 0.3 % from 5 degrees of freedom on.
    """
    v = np.asarray(freedom, np.float64)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
