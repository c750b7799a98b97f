"""Choosing line and k-of-n for an alarm budget, by replaying whole blocks of a baseline."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.core.errors import InsufficientDataError
from moescope.core.thresholds import PagingRule
from moescope.jobs.paging.block_maxima import Values, paging_height, tail_line
from moescope.jobs.paging.poisson import poisson_rate_bound
from moescope.jobs.paging.replay import pages_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moescope.jobs.paging.series import PagingSeries

MINIMUM_BLOCKS = 8
"""With fewer blocks there is no tail to speak of, and no rule."""

CANDIDATES = ((2, 3), (3, 5), (4, 6), (6, 9))
"""k-of-n, quickest first. One slot never pages: `for` is at least two slots."""

_FILLS = 3
"""The last `of` slots have to fit this often into a block, or too many of them cross its ends."""

_NO_HEIGHT = 1e-9

_WORTH_A_SLOT = 0.1
"""A further needed slot has to lower the line's height over the median by this share."""


class _Choice(NamedTuple):
    cost: float
    rule: PagingRule


def equal_shares(series: Sequence[PagingSeries], budget_per_day: float) -> list[float]:
    """What each series may cost: the model's budget in equal parts.

    The parts add up to the budget even if all series page at different times. In truth one fault
    moves several of them, and those pages become one notification: the budget is kept with room
    to spare.
    """
    return [budget_per_day / len(series)] * len(series) if series else []


def solve_all(
    series: Sequence[PagingSeries], budget_per_day: float
) -> tuple[tuple[PagingRule, ...], Mapping[int, str]]:
    """Rules of all series of a model, which share one budget.

    Args:
        series: Every family of every kind of window that may page.
        budget_per_day: False pages per day that the model may cost.

    Returns:
        The rules, and by index in `series` why there is none.
    """
    missing = {
        index: why for index, each in enumerate(series) if (why := _too_little(each.observed()))
    }
    enough = [each for index, each in enumerate(series) if index not in missing]
    shares = equal_shares(enough, budget_per_day)
    rules = tuple(solve_paging(each, share) for each, share in zip(enough, shares, strict=True))
    return rules, missing


def solve_paging(series: PagingSeries, budget_per_day: float) -> PagingRule:
    """The rule of one series that costs at most a budget of false pages.

    Where the baseline is long enough, the line is the lowest one at which the one-sided Poisson
    95 % upper bound of the replayed rate is within the budget. Where it spans less than
    3 / budget days, no count of pages could show that: the line is then at least the greatest
    height of any block, and higher if the tail of the heights says that the budget needs it; the
    rule is marked `only_bound`. No line is below 0, the red line itself.

    Of several k-of-n that keep the budget, the quickest is taken unless a slower one lowers the
    line by a tenth of its height over the median slot per further slot needed.

    Args:
        series: Values by block.
        budget_per_day: False pages per day that this series may cost; positive.

    Raises:
        InsufficientDataError: Too few blocks have data, or too few slots of them do.
        ValueError: The budget is not positive.
    """
    if not budget_per_day > 0:
        raise ValueError("the budget must be positive")
    blocks = series.observed()
    if why := _too_little(blocks):
        raise InsufficientDataError(
            f"Paging of {series.family} in {series.phase} {series.kind} windows of {series.size}"
            " cannot be solved.",
            why=f"{why}.",
            next_step="Choose a longer baseline, or longer blocks (calibration.block).",
        )
    median = float(np.median(np.concatenate(blocks)))
    choices = [
        _choice(series, blocks, budget_per_day, candidate, median)
        for candidate in CANDIDATES
        if _is_filled(blocks, candidate[1])
    ]
    return min(choices, key=lambda each: each.cost).rule


def _too_little(blocks: Sequence[Values]) -> str:
    """Why there can be no rule; empty if there can."""
    if len(blocks) < MINIMUM_BLOCKS:
        return f"{len(blocks)} blocks have data, {MINIMUM_BLOCKS} are needed"
    if not _is_filled(blocks, CANDIDATES[0][1]):
        return f"half of the blocks have fewer than {CANDIDATES[0][1] * _FILLS} slots with data"
    return ""


def _is_filled(blocks: Sequence[Values], of: int) -> bool:
    """Whether blocks are long enough for the last `of` slots to mostly lie inside of one."""
    return bool(np.median([len(block) for block in blocks]) >= _FILLS * of)


def _choice(
    series: PagingSeries,
    blocks: Sequence[Values],
    budget_per_day: float,
    needed_of: tuple[int, int],
    median: float,
) -> _Choice:
    days = len(blocks) * series.block_days
    heights = np.array([paging_height(block, *needed_of) for block in blocks])
    allowed = allowed_pages(budget_per_day, days)
    if allowed is None:
        line = max(0.0, heights.max(), tail_line(heights, budget_per_day * series.block_days))
        rule, pages = _rule(series, line, needed_of), 0
    else:
        rule, pages = _lowest(series, blocks, heights, needed_of, allowed)
    rule = replace(
        rule,
        expected_per_day=pages / days,
        bound_per_day=poisson_rate_bound(pages, days),
        only_bound=allowed is None,
    )
    height = max(rule.line - median, _NO_HEIGHT)
    return _Choice(math.log(height) + _WORTH_A_SLOT * rule.needed, rule)


def allowed_pages(budget_per_day: float, days: float) -> int | None:
    """Most pages whose upper bound is within the budget; None: not even none are."""
    if poisson_rate_bound(0, days) > budget_per_day:
        return None
    low, high = 0, math.ceil(budget_per_day * days) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if poisson_rate_bound(middle, days) <= budget_per_day:
            low = middle
        else:
            high = middle
    return low


def _lowest(
    series: PagingSeries,
    blocks: Sequence[Values],
    heights: Values,
    needed_of: tuple[int, int],
    allowed: int,
) -> tuple[PagingRule, int]:
    """The lowest line among the heights at which at most `allowed` pages are replayed."""
    order = np.argsort(-heights, kind="stable")

    def tried(rank: int) -> tuple[PagingRule, int]:
        """The line that `rank` blocks exceed, unless they tie with it or are below 0."""
        rule = _rule(series, max(float(heights[order[rank]]), 0.0), needed_of)
        return rule, sum(pages_in(blocks[index], rule) for index in order[:rank])

    low, high = 0, min(allowed + 1, len(blocks))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tried(middle)[1] <= allowed else (low, middle)
    return tried(low)


def _rule(series: PagingSeries, line: float, needed_of: tuple[int, int]) -> PagingRule:
    return PagingRule(
        phase=series.phase,
        kind=series.kind,
        size=series.size,
        stride=series.stride,
        scope_kind=series.scope_kind,
        family=series.family,
        line=float(line),
        needed=needed_of[0],
        of=needed_of[1],
        expected_per_day=math.nan,
        bound_per_day=math.nan,
        only_bound=False,
    )
