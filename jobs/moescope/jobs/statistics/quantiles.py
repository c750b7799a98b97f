"""Quantiles of weighted windows, and intervals that know which windows belong together."""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moescope.jobs.statistics.binomial import explained_levels

Values = NDArray[np.float64]

CONFIDENCE = 0.95
_ROUNDING = 1e-9
_TIE_SEED = 20_251


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
    if not len(values):
        return np.full(values.shape[1:], np.nan)
    columns = np.ascontiguousarray(values.reshape(len(values), -1).T)
    if weights is None or (weights == weights[0]).all():
        ranked = np.sort(columns, axis=1)
        present = (~np.isnan(ranked)).sum(axis=1)
        rank = np.maximum(np.ceil(present * p - _ROUNDING).astype(np.int64), 1) - 1
    else:
        order = np.argsort(columns, axis=1, kind="stable")
        ranked = np.take_along_axis(columns, order, axis=1)
        share = np.where(np.isnan(ranked), 0.0, weights[order])
        below = share.cumsum(axis=1)
        rank = (below < below[:, -1:] * (p - _ROUNDING)).sum(axis=1)
        present = (share > 0).sum(axis=1)
    rank = np.minimum(rank, len(values) - 1)
    found = np.where(present > 0, ranked[np.arange(len(ranked)), rank], np.nan)
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
    """One quantile of each column of windows; `RankedWindows` for several of the same windows.

    Args:
        values: float64 [N, L]; NaN is left out.
        weights: float64 [N], how many windows each stands for; positive.
        units: int64 [N], sampling unit of each row, from 0.
        p: Level of the quantile.
        confidence: Of the two-sided interval.
    """
    return RankedWindows(values, weights, units).quantiles(p, confidence=confidence)


class RankedWindows:
    """Windows in order of value, column by column, ready for any quantile.

    Args:
        values: float64 [N, L]; NaN is left out.
        weights: float64 [N], how many windows each stands for; positive.
        units: int64 [N], sampling unit of each row, from 0.
    """

    def __init__(self, values: Values, weights: Values, units: NDArray[np.int64]) -> None:
        self._given = (values, weights, units)
        self._mirror: RankedWindows | None = None
        self._rows, self._columns = values.shape
        if not self._rows:
            return
        # Equal values are put in an order that has nothing to do with their units.
        shuffled = np.random.default_rng(_TIE_SEED).permutation(self._rows)
        columns = np.ascontiguousarray(values[shuffled].T)
        order = np.argsort(columns, axis=1, kind="stable")
        self._ranked = np.take_along_axis(columns, order, axis=1)
        present = ~np.isnan(self._ranked)
        self._number = present.sum(axis=1)
        self._share = np.where(present, weights[shuffled][order], 0.0)
        self._below = self._share.cumsum(axis=1)
        self._total = self._below[:, -1]
        unit = units[shuffled][order]
        self._count = int(units.max()) + 1
        self._place = unit + self._count * np.arange(self._columns)[:, None]
        self._mass = np.bincount(
            self._place.ravel(), self._share.ravel(), self._count * self._columns
        ).reshape(self._columns, self._count)
        self._seen = (self._mass > 0).sum(axis=1)

    def quantiles(self, p: float, *, confidence: float = CONFIDENCE) -> Quantiles:
        """The value of rank ⌈(n + 1)p⌉ of each column, with an interval for the quantile.

        Below the true quantile lies a share F of the windows that varies around p. Its variance is
        that of Σ G_c over units, with G_c = the unit's weight at or below the quantile − p × its
        weight: what resampling whole units gives, in closed form. It makes the windows worth
        n_e = p(1 − p)/Var(F) independent ones, at most as many as there are (weights counted as
        Kish does), and fewer by (z/t)² where units are few. An order statistic is inside of the
        interval when its share is one that Bin(n_e, p)/n_e takes without surprise.

        Args:
            p: Level of the quantile; over ½ the usual rank, below ½ its mirror image
                (⌊(n + 1)p⌋, the rank that is as far from the other end).
            confidence: Of the two-sided interval.
        """
        if p < 0.5:  # noqa: PLR2004 - the median
            if self._mirror is None:
                values, weights, units = self._given
                self._mirror = RankedWindows(-values, weights, units)
            upper = self._mirror.quantiles(1.0 - p, confidence=confidence)
            return Quantiles(-upper.value, -upper.high, -upper.low)
        if not self._rows:
            return Quantiles(*(np.full(self._columns, np.nan) for _ in Quantiles._fields))
        total = self._total
        with np.errstate(invalid="ignore", divide="ignore"):
            whole = total * (1.0 + 1.0 / self._number) * p
            kish = total**2 / (self._share**2).sum(axis=1)
            effective = np.minimum(self._effective_draws(p), kish) * self._few_units(confidence)
        slack = _ROUNDING * np.maximum(total, 1.0)
        value = self._picked(self._rank_of(whole - slack), np.nan)
        tail = (1.0 - confidence) / 2.0
        levels = explained_levels(np.nan_to_num(effective, nan=1.0), p, tail)
        low = self._picked(self._rank_of(levels.low * total - slack), -np.inf)
        high = self._picked(self._rank_of(levels.high * total + slack, past=True), np.inf)
        known = ~np.isnan(value)
        return Quantiles(value, np.where(known, low, np.nan), np.where(known, high, np.nan))

    def _rank_of(self, weight: Values, *, past: bool = False) -> NDArray[np.int64]:
        """Rank from 0 of the first window at which the weight is reached, or passed; [L]."""
        side: Literal["left", "right"] = "right" if past else "left"
        ranks = [
            np.searchsorted(below, each, side)
            for below, each in zip(self._below, weight, strict=True)
        ]
        return np.array(ranks, np.int64)

    def _picked(self, rank: NDArray[np.int64], beyond: float) -> Values:
        """Order statistics by rank from 0; `beyond` past the last."""
        inside = rank < self._number
        column = np.arange(self._columns)
        return np.where(inside, self._ranked[column, np.minimum(rank, self._rows - 1)], beyond)

    def _effective_draws(self, p: float) -> Values:
        """p(1 − p)/Var(F) of each column, with the variance between units at the quantile.

        The level p falls inside of one window's weight; the variance is interpolated between
        those with that window counted below and above.
        """
        total, column = self._total, np.arange(self._columns)
        last = np.minimum(self._rank_of(total * p * (1.0 - _ROUNDING)), self._rows - 1)
        counted = np.where(np.arange(self._rows) <= last[:, None], self._share, 0.0)
        under = np.bincount(
            self._place.ravel(), counted.ravel(), self._count * self._columns
        ).reshape(self._columns, self._count)
        gap = under - p * self._mass
        boundary = self._share[column, last]
        edge = gap.ravel()[self._place[column, last]]
        variance = (gap**2).sum(axis=1)
        without = variance - edge**2 + (edge - boundary) ** 2
        part = np.clip((self._below[column, last] - total * p) / boundary, 0.0, 1.0)
        between = (1.0 - part) * variance + part * without
        between = between * self._seen / np.maximum(self._seen - 1, 1)
        effective: Values = p * (1.0 - p) * total**2 / np.maximum(between, _ROUNDING)
        return effective

    def _few_units(self, confidence: float) -> Values:
        """(z/t)²: a variance known from few units only makes the windows worth less."""
        z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
        worth: Values = (z / student_quantile(np.maximum(self._seen - 1, 1), z)) ** 2
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
