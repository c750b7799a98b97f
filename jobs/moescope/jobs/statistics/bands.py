"""How often healthy windows may be past lines that were themselves estimated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moescope.jobs.statistics.tails import weight_past_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_ROUNDING = 1e-9


class RateBand(NamedTuple):
    """Central 95 % of exceedance rates under resampling.

    Attributes:
        low, high: Shares of windows.
    """

    low: float
    high: float


class Pool(NamedTuple):
    """Values that make a line and are judged by it: calibration's and held-out ones together.

    Attributes:
        values: float64 [N], high is bad; no NaN.
        weights: float64 [N], as what makes the line.
        units: int64 [N], sampling units from 0, the same numbering in every pool.
        judged: float64 [N], weights as what is judged by it: 0 for values that only lend their
            tail. None: as `weights`.
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    units: NDArray[np.int64]
    judged: NDArray[np.float64] | None = None


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


def rate_bands(
    pools: Sequence[Pool],
    samples: TwoSamples,
    levels: Sequence[float],
    *,
    sides: int = 1,
    confidence: float = 0.95,
) -> list[RateBand]:
    """Two-sample cluster bootstrap of the share of held-out windows past their lines.

    If calibration and held-out windows come from one healthy population, the units of both can
    be drawn from them together. Each resample draws as many units as calibration had, sets each
    pool's line to their quantile, draws as many units as were held out, and takes the share of
    their windows past the lines, over all pools. So the band holds both the error of the lines and
    that of the rate.

    Args:
        pools: One per line (layer, scene, band …).
        samples: Of the units that the pools' windows belong to.
        levels: Of the lines, over ½.
        sides: In how many of the pools each window is: 2 where both ends of a metric are bad, and
            the rate is that of windows past either.
        confidence: Central share of the resampled rates.

    Returns:
        A band per level.
    """
    drawn, tried = samples
    past, seen = np.zeros((len(levels), len(drawn))), np.zeros(len(drawn))
    if pools:
        totals = drawn @ _by_unit(pools, samples, [pool.weights for pool in pools])
        numbers = drawn @ _by_unit(pools, samples, [pool.weights > 0 for pool in pools])
        judged = [pool.weights if pool.judged is None else pool.judged for pool in pools]
        seen = (tried @ _by_unit(pools, samples, judged)).sum(axis=1)
        for pool, own, total, number in zip(pools, judged, totals.T, numbers.T, strict=True):
            falling = np.argsort(-pool.values, kind="stable")
            ranked = (
                pool.values[falling],
                pool.weights[falling],
                own[falling],
                pool.units[falling],
            )
            for at, p in enumerate(levels):
                # The rank of a line, ⌈(n + 1)p⌉, leaves so much above it.
                allowed = total * (1.0 - p * (1.0 + 1.0 / np.maximum(number, 1.0)))
                past[at] += weight_past_line(*ranked, drawn, tried, allowed + _ROUNDING)
    return [_central(sides * each[seen > 0] / seen[seen > 0], confidence) for each in past]


def _by_unit(
    pools: Sequence[Pool], samples: TwoSamples, weights: Sequence[NDArray[Any]]
) -> NDArray[np.float64]:
    """Weight of each unit in each pool, float64 [units, pools]."""
    count = samples.for_lines.shape[1]
    return np.stack(
        [np.bincount(pool.units, each, count) for pool, each in zip(pools, weights, strict=True)],
        axis=1,
    )


def _central(rates: NDArray[np.float64], confidence: float) -> RateBand:
    if not len(rates):
        return RateBand(np.nan, np.nan)
    edge = (1.0 - confidence) / 2.0
    low, high = np.quantile(rates, [edge, 1.0 - edge])
    return RateBand(float(low), float(high))
