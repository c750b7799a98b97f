from __future__ import annotations

import numpy as np
import pytest

from moescope.jobs.statistics.cusum import (
    chi_square_score,
    mean_run_length,
    self_starting_scores,
    threshold_for,
    upper_cusum,
)


def test_scores_of_a_steady_series_are_standard_normal() -> None:
    """From the fourth value on, whatever the series' mean and spread are."""
    series = np.random.default_rng(3).normal(40, 7, (60, 4_000))
    scores = self_starting_scores(series)[3:]
    assert abs(scores.mean()) < 0.01
    assert abs(scores.std() - 1) < 0.01
    assert abs(np.mean(scores > 1.645) - 0.05) < 0.005


def test_scores_equal_the_plain_formula() -> None:
    """Each value against mean and standard deviation of those before it; no spread, no score."""
    series = [5.0, 5.0, 5.0, 6.0, 4.0, 9.0]
    scores = self_starting_scores(np.array(series))
    assert scores[:4].tolist() == [0, 0, 0, 0]  # nothing varied before
    for index in (4, 5):
        before = np.array(series[:index])
        ratio = (series[index] - before.mean()) / before.std(ddof=1)
        ratio *= np.sqrt(index / (index + 1))
        freedom = index - 1
        expected = np.sign(ratio) * np.sqrt(freedom * np.log1p(ratio**2 / freedom))
        expected *= (8 * freedom + 1) / (8 * freedom + 3)
        assert scores[index] == pytest.approx(expected, rel=1e-12)


def test_scores_do_not_depend_on_unit_and_origin() -> None:
    """Bits or nats, and far from zero: the same scores."""
    series = np.random.default_rng(1).random(30)
    moved = self_starting_scores(1e6 + 0.001 * series)
    assert moved == pytest.approx(self_starting_scores(series), abs=1e-4)


def test_sums_alarm_as_rarely_as_the_threshold_was_made_for() -> None:
    """One false alarm in so many scores, by simulation."""
    threshold = threshold_for(200)
    assert mean_run_length(threshold) == pytest.approx(200)
    scores = np.random.default_rng(5).normal(size=(4_000, 1_000))
    alarmed = upper_cusum(scores) > threshold
    first = np.where(alarmed.any(axis=0), alarmed.argmax(axis=0) + 1, len(scores))
    assert first.mean() == pytest.approx(200, rel=0.08)


def test_a_shift_is_found_soon() -> None:
    """Two standard deviations are seen within a dozen values, and nothing before."""
    scores = np.random.default_rng(2).normal(size=(80, 500))
    scores[40:] += 2
    alarmed = upper_cusum(scores) > threshold_for(1_000)
    assert alarmed[:40].any(axis=0).mean() < 0.06
    assert alarmed[51].mean() > 0.99


@pytest.mark.parametrize("freedom", [1, 2, 7])
def test_chi_square_scores_are_nearly_normal(freedom: int) -> None:
    """The upper tail, which alarms, is that of the normal law."""
    draws = np.random.default_rng(9).chisquare(freedom, 200_000)
    scores = chi_square_score(draws, freedom)
    assert np.mean(scores > 2.326) == pytest.approx(0.01, abs=0.002)
