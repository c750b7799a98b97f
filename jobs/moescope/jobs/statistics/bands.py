"""How often healthy windows may be past lines that were themselves estimated."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_ROUNDING = 1e-9
_TAIL = 3.0
"""Only the part of a sample beyond this many times the nominal share is looked at."""


class RateBand(NamedTuple):
    """Central 95 % of exceedance rates under resampling.

    Attributes:
        low, high: Shares of windows.
    """

    low: float
    high: float


class Pool(NamedTuple):
    """Windows that one line judges: calibration's and held-out ones together.

    Attributes:
        values: float64 [N], high is bad; no NaN.
        weights: float64 [N].
        units: int64 [N], sampling units from 0, the same numbering in every pool.
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    units: NDArray[np.int64]


class TwoSamples(NamedTuple):
    """How often each unit is drawn for the lines, and for the rate; float64 [B, units]."""

    for_lines: NDArray[np.float64]
    for_rates: NDArray[np.float64]


def draw_two_samples(
    calibrated: NDArray[np.int64],
    held_out: NDArray[np.int64],
    *,
    resamples: int,
    rng: np.random.Generator,
) -> TwoSamples:
    """Draw both samples anew from all their units together, B times.

    Args:
        calibrated: Units of the one sample.
        held_out: Units of the other, numbered on.
        resamples: B.
        rng: Draws.
    """
    everyone = np.concatenate([calibrated, held_out])
    count = int(everyone.max()) + 1

    def times(draws: int) -> NDArray[np.float64]:
        found = np.zeros((resamples, count))
        shares = np.full(len(everyone), 1.0 / len(everyone))
        found[:, everyone] = rng.multinomial(draws, shares, resamples)
        return found

    return TwoSamples(times(len(calibrated)), times(len(held_out)))


def rate_band(
    pools: Sequence[Pool], samples: TwoSamples, p: float, *, confidence: float = 0.95
) -> RateBand:
    """Two-sample cluster bootstrap of the share of held-out windows past their lines.

    If calibration and held-out windows come from one healthy population, the units of both can
    be drawn from them together. Each resample draws as many units as calibration had, sets each
    pool's line to their p-quantile, draws as many units as were held out, and takes the share of
    their windows past the lines, over all pools. So the band holds both the error of the lines and
    that of the rate.

    Args:
        pools: One per line (layer, scene, band …).
        samples: Of the units that the pools' windows belong to.
        p: Level of the lines, over ½.
        confidence: Central share of the resampled rates.
    """
    drawn, tried = samples
    resamples, count = drawn.shape
    past, seen = np.zeros(resamples), np.zeros(resamples)
    for pool in pools:
        mass = np.bincount(pool.units, pool.weights, count)
        total, windows = drawn @ mass, tried @ mass
        order = np.argsort(pool.values, kind="stable")
        share = pool.weights[order]
        start = int(np.searchsorted(share.cumsum(), share.sum() * (1.0 - _TAIL * (1.0 - p))))
        order, share = order[start:], share[start:]
        places = pool.units[order]
        above = np.cumsum((drawn[:, places] * share)[:, ::-1], axis=1)[:, ::-1]
        # The line is the first value with at most a share 1 − p of the draws strictly above it.
        beyond = np.concatenate([above[:, 1:], np.zeros((resamples, 1))], axis=1)
        line = (beyond > (1.0 - p) * total[:, None] + _ROUNDING).sum(axis=1)
        over = np.concatenate(
            [
                np.cumsum((tried[:, places] * share)[:, ::-1], axis=1)[:, ::-1],
                np.zeros((resamples, 1)),
            ],
            axis=1,
        )
        # Strictly above the line: equal values are not past it.
        ranked = pool.values[order]
        after = np.searchsorted(ranked, ranked, side="right")
        past += over[np.arange(resamples), after[np.minimum(line, len(order) - 1)]]
        seen += windows
    rates = past[seen > 0] / seen[seen > 0]
    if not len(rates):
        return RateBand(np.nan, np.nan)
    edge = (1.0 - confidence) / 2.0
    low, high = np.quantile(rates, [edge, 1.0 - edge])
    return RateBand(float(low), float(high))
