"""What paired blocks may say: met, not met, or that the machine was too restless to tell."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from benchmarks.paired import Interval, judge, median_interval

QUIET = Interval(0.995, 1.0, 1.005)
RESTLESS = Interval(0.97, 1.0, 1.01)


@pytest.mark.parametrize(
    ("own", "same", "verdict"),
    [
        (Interval(0.985, 0.99, 0.995), QUIET, "met"),
        (Interval(0.98, 0.99, 0.995), QUIET, "met"),
        (Interval(0.95, 0.96, 0.97), QUIET, "not met"),
        (Interval(0.97, 0.99, 1.01), QUIET, "inconclusive"),
        (Interval(0.99, 1.0, 1.01), RESTLESS, "inconclusive"),
        (Interval(0.5, 0.6, 0.7), RESTLESS, "inconclusive"),
    ],
)
def test_a_higher_ratio_is_judged_by_its_whole_interval(
    own: Interval, same: Interval, verdict: str
) -> None:
    """A target is met or missed by all of the interval, and only where A/A is narrower."""
    assert judge(own, same, 0.98, "higher") == verdict


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        (Interval(1.0, 1.01, 1.03), "met"),
        (Interval(1.04, 1.05, 1.06), "not met"),
        (Interval(1.0, 1.02, 1.04), "inconclusive"),
    ],
)
def test_a_lower_ratio_is_judged_the_other_way_round(own: Interval, verdict: str) -> None:
    """A latency is good where it is low."""
    assert judge(own, QUIET, 1.03, "lower") == verdict


def test_an_interval_over_episodes_is_wider_than_over_pairs() -> None:
    """Pairs of one episode share its processes: 4 episodes of 50 pairs are not 200 pairs."""
    random = np.random.default_rng(3)
    episodes = [
        list(1 + shift + random.normal(0, 0.01, 50)) for shift in (-0.05, -0.02, 0.02, 0.05)
    ]
    of_episodes = median_interval(episodes)
    pairs = [ratio for episode in episodes for ratio in episode]
    of_pairs = median_interval([pairs])
    assert of_episodes.value == of_pairs.value == pytest.approx(median(pairs))
    assert of_episodes.low < of_pairs.low < of_pairs.value < of_pairs.high < of_episodes.high


def test_an_interval_needs_pairs() -> None:
    """An empty episode is a mistake, no number."""
    with pytest.raises(ValueError, match="at least one episode"):
        median_interval([[1.0], []])
