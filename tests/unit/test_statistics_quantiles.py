from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from moescope.core.thresholds import Standing
from moescope.jobs.statistics import (
    centre_and_spread,
    cluster_quantiles,
    standing_of,
    weighted_quantile,
)
from moescope.jobs.statistics.binomial import explained_levels, incomplete_beta
from moescope.jobs.statistics.quantiles import student_quantile


def at_least(k: int, n: int, p: Fraction) -> float:
    """P(Bin(n, p) ≥ k), exact."""
    return float(sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1)))


@pytest.mark.parametrize("p", [Fraction(9, 10), Fraction(99, 100)])
def test_the_incomplete_beta_function_is_the_tail_of_a_binomial(p: Fraction) -> None:
    """A wrong tail would make every interval too narrow or too wide, unnoticed."""
    for n in (5, 40, 120):
        k = np.arange(1, n + 1)
        found = incomplete_beta(k.astype(np.float64), (n + 1 - k).astype(np.float64), float(p))
        expected = [at_least(int(each), n, p) for each in k]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("n", [60, 120])
def test_explained_levels_are_those_of_exact_binomial_tails(n: int) -> None:
    """The table between the exact numbers of draws must not shift the rank of an interval's end."""
    low, high = explained_levels(np.array([float(n)]), 0.9, 0.025)
    p = Fraction(9, 10)
    greatest = max(k for k in range(1, n + 1) if at_least(k, n, p) > 0.025)
    least = min(k for k in range(n + 1) if 1 - at_least(k + 1, n, p) > 0.025)
    assert greatest <= high[0] * n < greatest + 1
    assert least - 1 < low[0] * n <= least


@pytest.mark.parametrize(("p", "bounded"), [(0.9, 36), (0.99, 368)])
def test_without_enough_draws_no_share_is_too_large(p: float, bounded: int) -> None:
    """0.9³⁵ and 0.99³⁶⁷ are above 2.5 %: so many draws below prove no upper end."""
    _, high = explained_levels(np.array([bounded - 1.1, bounded + 0.1]), p, 0.025)
    assert high[0] == 1.0
    assert high[1] < 1.0


def test_a_line_is_the_order_statistic_of_rank_n_plus_one() -> None:
    """Rank ⌈(n + 1)p⌉ above, its mirror image below, whatever the order of rows."""
    values = np.random.default_rng(4).permutation(np.arange(1.0, 500.0))
    units = np.arange(len(values))
    for p, rank in ((0.9, 450), (0.99, 495), (0.1, 50), (0.01, 5)):
        found = cluster_quantiles(values[:, None], np.ones(len(values)), units, p)
        assert found.value[0] == rank
        assert found.low[0] <= found.value[0] <= found.high[0]


def test_a_weighted_row_counts_like_equal_rows() -> None:
    """A row that stands for four windows moves the quantile as four windows do."""
    rng = np.random.default_rng(5)
    values, weights = rng.random((300, 2)), rng.integers(1, 5, 300)
    whole = weighted_quantile(np.repeat(values, weights, axis=0), 0.9)
    np.testing.assert_array_equal(weighted_quantile(values, 0.9, weights.astype(float)), whole)


def test_missing_values_are_left_out_by_column() -> None:
    """A layer without a metric must not shift the line of another."""
    values = np.arange(1.0, 41.0)[:, None].repeat(3, axis=1)
    values[::2, 1] = np.nan
    values[:, 2] = np.nan
    found = cluster_quantiles(values, np.ones(40), np.arange(40), 0.9)
    # ⌈41 · 0.9⌉ = 37th of 1 … 40, ⌈21 · 0.9⌉ = 19th of 2, 4, … 40.
    np.testing.assert_array_equal(found.value, [37.0, 38.0, np.nan])
    assert np.isnan(found.low[2])
    assert np.isnan(found.high[2])


def test_a_rank_beyond_the_values_is_no_line() -> None:
    """50 values have no P99: ⌈51 · 0.99⌉ is 51."""
    values = np.arange(50.0)[:, None]
    assert np.isnan(cluster_quantiles(values, np.ones(50), np.arange(50), 0.99).value[0])


def test_windows_of_one_request_count_little() -> None:
    """Copies of a unit's window add nothing to what is known, so the interval stays."""
    rng = np.random.default_rng(6)
    values = rng.random((200, 1))
    alone = cluster_quantiles(values, np.ones(200), np.arange(200), 0.9)
    copies = np.repeat(values, 5, axis=0)
    together = cluster_quantiles(copies, np.ones(1000), np.repeat(np.arange(200), 5), 0.9)
    apart = cluster_quantiles(copies, np.ones(1000), np.arange(1000), 0.9)
    assert together.high - together.low >= 0.8 * (alone.high - alone.low)
    assert apart.high - apart.low < 0.7 * (alone.high - alone.low)


def test_few_units_have_no_upper_end() -> None:
    """300 independent values cannot bound a P99 from both sides; 29 cannot bound a P90."""
    values = np.arange(300.0)[:, None]
    red = cluster_quantiles(values, np.ones(300), np.arange(300), 0.99)
    assert math.isinf(red.high[0])
    assert math.isfinite(red.low[0])
    low = cluster_quantiles(-values, np.ones(300), np.arange(300), 0.01)
    assert math.isinf(-low.low[0])
    assert math.isinf(cluster_quantiles(values[:29], np.ones(29), np.arange(29), 0.9).high[0])


def test_students_t_is_close_to_tables() -> None:
    """97.5 % of t: 2.571 at 5, 2.048 at 28, 1.984 at 100 degrees of freedom."""
    found = student_quantile(np.array([5, 28, 100]), 1.959964)
    np.testing.assert_allclose(found, [2.5706, 2.0484, 1.9840], rtol=3e-3)


def test_spread_is_positive_where_most_values_are_equal() -> None:
    """A constant metric must not make a standardised value infinite."""
    values = np.array([[5.0, 0.0, 1.0], [5.0, 0.0, 1.0], [5.0, 0.0, 1.0], [5.0, 0.0, 9.0]])
    centre, spread = centre_and_spread(values)
    np.testing.assert_array_equal(centre, [5.0, 0.0, 1.0])
    assert (spread > 0).all()


def test_spread_of_normal_values_is_their_standard_deviation() -> None:
    """Exceedances are told in spreads: one has to mean about one σ."""
    values = np.random.default_rng(7).normal(3.0, 2.0, (20_000, 1))
    centre, spread = centre_and_spread(values)
    assert centre[0] == pytest.approx(3.0, abs=0.06)
    assert spread[0] == pytest.approx(2.0, abs=0.06)


def test_lines_are_firm_from_a_thousand_units_on() -> None:
    """Below ten units beyond a P99, people are told that it is provisional."""
    assert standing_of(999) is Standing.PROVISIONAL
    assert standing_of(1000) is Standing.FIRM
