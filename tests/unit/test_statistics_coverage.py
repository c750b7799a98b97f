from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pytest

from moescope.jobs.statistics import Pool, cluster_quantiles, draw_two_samples, rate_bands

if TYPE_CHECKING:
    from numpy.typing import NDArray

BASELINES = 400
"""Standard error of a coverage of 95 %: 1.1 %; bounds below are 3 of them beyond 93 and 97 %."""


def clustered(
    rng: np.random.Generator, units: int, columns: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Log-normal values of units with 1 … 12 windows whose scores are correlated 0.4."""
    unit = np.repeat(np.arange(units), np.minimum(rng.geometric(0.35, units), 12))
    common = rng.standard_normal((units, columns))[unit]
    own = rng.standard_normal(common.shape)
    return np.exp(0.5 * (np.sqrt(0.4) * common + np.sqrt(0.6) * own)), unit


@pytest.mark.parametrize(("p", "units"), [(0.9, 100), (0.99, 400)])
def test_intervals_hold_the_true_quantile_as_often_as_they_say(p: float, units: int) -> None:
    """A 95 % interval that holds the line less often would sell guesses as calibration."""
    rng = np.random.default_rng(11)
    truth = np.exp(0.5 * NormalDist().inv_cdf(p))
    held = naive = 0
    for _ in range(8):
        values, unit = clustered(rng, units, BASELINES // 8)
        found = cluster_quantiles(values, np.ones(len(unit)), unit, p)
        held += int(((found.low <= truth) & (truth <= found.high)).sum())
        alone = cluster_quantiles(values, np.ones(len(unit)), np.arange(len(unit)), p)
        naive += int(((alone.low <= truth) & (truth <= alone.high)).sum())
    assert 0.897 <= held / BASELINES <= 1.0
    assert held > naive


def test_the_band_of_rates_holds_healthy_rates() -> None:
    """The error of the line itself belongs to the band, or every second check would fail."""
    rng = np.random.default_rng(12)
    inside = 0
    for trial in range(60):
        values, unit = clustered(rng, 200, 1)
        half = unit < 100
        line = cluster_quantiles(values[half], np.ones(half.sum()), unit[half], 0.9).value[0]
        rate = (values[~half, 0] > line).mean()
        samples = draw_two_samples(
            np.arange(100), np.arange(100, 200), resamples=150, rng=np.random.default_rng(trial)
        )
        (band,) = rate_bands([Pool(values[:, 0], np.ones(len(unit)), unit)], samples, [0.9])
        inside += band.low <= rate <= band.high
    # 95 % of 60 is 57; fewer than 50 has a probability of 1 in 10⁴.
    assert inside >= 50


@pytest.mark.parametrize("p", [0.9, 0.98])
def test_the_band_is_that_of_plain_resampling(p: float) -> None:
    """The shortcut through the tail gives what sorting each resample gives, ties included."""
    rng = np.random.default_rng(13)
    values = np.floor(rng.exponential(6.0, 150))
    unit = np.repeat(np.arange(50), 3)
    samples = draw_two_samples(np.arange(30), np.arange(30, 50), resamples=40, rng=rng)
    # Every other value only helps to make the line.
    judged = np.tile([1.0, 0.0], 75)
    rates = []
    for lines, tried in zip(*samples, strict=True):
        drawn = np.sort(np.repeat(values, lines[unit].astype(int)))
        line = drawn[int(np.ceil(p * (len(drawn) + 1) - 1e-9)) - 1]
        seen = np.repeat(values[judged > 0], tried[unit[judged > 0]].astype(int))
        rates.append((seen > line).mean())
    (band,) = rate_bands([Pool(values, np.ones(150), unit, judged)], samples, [p])
    assert (band.low, band.high) == pytest.approx(tuple(np.quantile(rates, [0.025, 0.975])))
