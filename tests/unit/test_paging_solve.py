"""Rules solved for a budget, on clustered exceedances and on fresh blocks of the same kind."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.paging_series import SLOTS, clustered_blocks, plainly_paging, series_of

from moescope.core.errors import InsufficientDataError
from moescope.jobs.paging import equal_shares, pages_in, solve_all, solve_paging
from moescope.jobs.paging.block_maxima import paging_height, tail_line

DAY = 144
"""Blocks of ten minutes."""


@pytest.mark.parametrize("needed_of", [(1, 1), (2, 3), (3, 5), (6, 9)])
def test_height_is_the_line_at_which_a_block_stops_paging(needed_of: tuple[int, int]) -> None:
    """The solver reads lines off heights instead of trying lines one by one."""
    for block in clustered_blocks(np.random.default_rng(1), 20):
        height = paging_height(block[~np.isnan(block)], *needed_of)
        assert plainly_paging(block, np.nextafter(height, -np.inf), *needed_of)
        assert not plainly_paging(block, height, *needed_of)


def test_too_few_slots_never_page() -> None:
    """A block with one slot cannot have two over the line."""
    assert paging_height(np.array([9.0]), 2, 3) == -math.inf


def test_tail_line_of_exponential_heights_hits_its_rate() -> None:
    """Beyond the sample the line has to follow the tail: ln 2 · σ higher per halving."""
    heights = np.random.default_rng(2).exponential(2.0, 4_000)
    for rate in (1e-3, 1e-4, 1e-5):
        assert tail_line(heights, rate) == pytest.approx(-2.0 * math.log(rate), rel=0.15)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_fresh_blocks_page_within_the_budget(seed: int) -> None:
    """The point of solving: what held on the baseline holds on traffic it has not seen."""
    random = np.random.default_rng(seed)
    budget = 1.0
    rule = solve_paging(series_of(clustered_blocks(random, 8 * DAY)), budget)
    assert not rule.only_bound
    assert rule.bound_per_day <= budget
    fresh = series_of(clustered_blocks(random, 20 * DAY))
    pages = sum(pages_in(block, rule) for block in fresh.observed())
    assert pages / 20 <= 1.5 * budget


@pytest.mark.parametrize("seed", [6, 7, 8])
def test_short_baseline_gives_a_bound_and_still_keeps_the_budget(seed: int) -> None:
    """Half a day cannot prove one page per ten days: the tail of the heights sets the line."""
    random = np.random.default_rng(seed)
    blocks = clustered_blocks(random, DAY // 2)
    rule = solve_paging(series_of(blocks), 0.1)
    assert rule.only_bound
    assert rule.expected_per_day == 0.0
    assert rule.bound_per_day == pytest.approx(2.995732 / 0.5, rel=1e-6)
    assert not any(plainly_paging(block, rule.line, rule.needed, rule.of) for block in blocks)
    fresh = series_of(clustered_blocks(random, 20 * DAY))
    pages = sum(pages_in(block, rule) for block in fresh.observed())
    assert pages / 20 <= 1.5 * rule.bound_per_day
    assert pages / 20 <= 1.0, "even a tenth of the blocks of a proof leaves no flood"


def test_rates_are_those_of_a_plain_replay() -> None:
    """The reported figures have to be countable by hand on the baseline's blocks."""
    blocks = clustered_blocks(np.random.default_rng(9), 20 * DAY)
    rule = solve_paging(series_of(blocks), 2.0)
    paging = sum(plainly_paging(block, rule.line, rule.needed, rule.of) for block in blocks)
    assert paging >= 5
    assert paging <= rule.expected_per_day * 20 <= paging * 1.5, "few blocks page twice"
    assert rule.expected_per_day < rule.bound_per_day <= 2.0


def test_line_hardly_depends_on_which_blocks_were_seen() -> None:
    """With a day of blocks, two calibrations of the same traffic must not differ wildly."""
    lines = [
        solve_paging(series_of(clustered_blocks(np.random.default_rng(seed), DAY)), 0.05).line
        for seed in range(20, 32)
    ]
    assert max(lines) - min(lines) < 6.0
    assert np.std(lines) < 1.7


def test_lines_are_never_inside_of_the_red_line() -> None:
    """A budget that is never used up does not make healthy values page."""
    rule = solve_paging(series_of([np.full(SLOTS, -5.0)] * 300), 2.0)
    assert rule.line == 0.0


def test_nodes_share_one_budget() -> None:
    """Ten nodes with a day each are one day of the model's life, not ten."""
    blocks = clustered_blocks(np.random.default_rng(10), 10 * DAY)
    assert not solve_paging(series_of(blocks), 1.0).only_bound
    shared = solve_paging(series_of(blocks, scopes=10), 1.0)
    assert shared.only_bound
    assert shared.bound_per_day == pytest.approx(2.995732, rel=1e-6)


def test_families_share_one_budget_and_short_ones_take_no_part() -> None:
    """The budget is the model's; a series without a rule does not use up a share of it."""
    good = series_of(clustered_blocks(np.random.default_rng(11), 2 * DAY))
    short = series_of(list(good.blocks[:3]))
    sparse = series_of([block[:4] for block in good.blocks])
    rules, missing = solve_all([good, short, sparse, good], 4.0)
    assert sorted(missing) == [1, 2]
    assert "3 blocks" in missing[1]
    assert "slots" in missing[2]
    assert rules == (solve_paging(good, 2.0),) * 2
    assert sum(equal_shares([good, good, good], 1.0)) == pytest.approx(1.0)


def test_too_little_data_is_said_so() -> None:
    """Without blocks there is no rule, and the caller is told what to do."""
    with pytest.raises(InsufficientDataError) as caught:
        solve_paging(series_of([np.full(SLOTS, np.nan)] * 50), 1.0)
    assert "0 blocks have data" in caught.value.why
    with pytest.raises(ValueError, match="budget"):
        solve_paging(series_of([np.zeros(SLOTS)] * 50), 0.0)
