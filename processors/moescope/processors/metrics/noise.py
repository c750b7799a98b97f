"""The noise floor: what a divergence shows by chance alone.

Even if a router draws its experts from exactly the reference, a window of N tokens is a sample,
and its divergence is not zero. The noise floor is the mean that the smoothed estimators of
`moescope.processors.metrics.divergence` show for N independent tokens, each of which draws k
distinct experts such that expert e is among them with probability k·q_e.

That mean needs no simulation. Both divergences are sums over experts of a function of c_e alone
(the number of assignments is N·k in every window), so their mean needs only the distribution of
each c_e, which is binomial with N trials and probability k·q_e, in whatever way the k experts of
a token exclude each other. It is summed here term by term.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.core.errors import InputError
from moescope.processors.metrics.divergence import (
    checked_reference,
    divergence_terms,
    uniform_reference,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

FLOOR_TOKENS: NDArray[np.int64] = 2 ** np.arange(15, dtype=np.int64)
"""Token counts for which floors are tabulated: 1, 2, 4 … 16384."""
FLOOR_TOKENS.setflags(write=False)

_STANDARD_DEVIATIONS = 9.0
_STEPS_PER_DEVIATION = 4
_REACH = int(_STANDARD_DEVIATIONS * _STEPS_PER_DEVIATION)


class FloorTable(NamedTuple):
    """Noise floors at `FLOOR_TOKENS` (G entries), float64 [..., G]; NaN without a reference."""

    js: NDArray[np.float64]
    kl: NDArray[np.float64]


def noise_floor_table(reference: ArrayLike, top_k: int) -> FloorTable:
    """Tabulate both noise floors of a reference.

    No expert can be selected with a probability over 1. Where k·q_e asks for more, the expert is
    always selected, the rest is spread over the others in proportion to q, and the floor is
    measured from that attainable distribution: the mismatch itself is not noise.

    Args:
        reference: Counts or distribution [..., E], as `divergence` takes it.
        top_k: k.

    Raises:
        InputError: The reference is no distribution, or k is not in 1 … E.
    """
    given = np.asarray(reference)
    experts = given.shape[-1] if given.ndim else 0
    q = checked_reference(given, experts)
    if not 1 <= top_k <= experts:
        raise InputError(
            f"top_k is {top_k}, but a token selects between 1 and E = {experts} experts."
        )
    selected = inclusion_probabilities(q, top_k)
    parts = [_mean_terms(selected, int(tokens), top_k, experts) for tokens in FLOOR_TOKENS]
    return FloorTable(
        js=np.stack([js.sum(axis=-1) for js, _ in parts], axis=-1),
        kl=np.stack([kl.sum(axis=-1) for _, kl in parts], axis=-1),
    )


@lru_cache(maxsize=256)
def uniform_floor_table(experts: int, top_k: int) -> FloorTable:
    """Noise floors of the uniform reference, float64 [G] each, read-only."""
    table = noise_floor_table(uniform_reference(experts), top_k)
    for floors in table:
        floors.setflags(write=False)
    return table


def noise_floor(table: NDArray[np.float64], tokens: ArrayLike) -> NDArray[np.float64]:
    """Noise floor at any number of tokens.

    Interpolated linearly in the logarithms of floor and tokens; beyond the table it falls as
    1/tokens, and below one token it stays.

    Args:
        table: One of the arrays of a `FloorTable`, [..., G].
        tokens: Tokens of the windows, [...], broadcast with the table's leading axes.

    Returns:
        float64 [...]; NaN without a reference or where tokens are not positive.
    """
    n = np.asarray(tokens, np.float64)
    leading = np.broadcast_shapes(table.shape[:-1], n.shape)
    n = np.broadcast_to(n, leading)
    floors = np.broadcast_to(table, (*leading, table.shape[-1]))
    last = len(FLOOR_TOKENS) - 1
    known = n > 0
    place = np.log2(np.clip(np.where(known, n, 1.0), 1.0, FLOOR_TOKENS[last]))
    before = np.minimum(place.astype(np.int64), last - 1)
    low = np.take_along_axis(floors, before[..., None], axis=-1)[..., 0]
    high = np.take_along_axis(floors, before[..., None] + 1, axis=-1)[..., 0]
    # A floor of zero (k = E leaves nothing to chance) stays zero.
    positive = (low > 0) & (high > 0)
    part = place - before
    between = np.exp(
        np.log(np.where(positive, low, 1.0)) * (1.0 - part)
        + np.log(np.where(positive, high, 1.0)) * part
    )
    inside = np.where(positive, between, np.where(np.isnan(low), np.nan, 0.0))
    beyond = np.minimum(FLOOR_TOKENS[last] / np.where(known, n, 1.0), 1.0)
    return np.where(known, inside * beyond, np.nan)


def inclusion_probabilities(q: NDArray[np.float64], top_k: int) -> NDArray[np.float64]:
    """Probability that a token selects each expert: k·q, capped at 1, summing to k.

    Args:
        q: float64 [..., E], positive, sums to 1; NaN throughout stays NaN.
        top_k: k.

    Returns:
        float64 [..., E].
    """
    capped = np.zeros(q.shape, np.bool_)
    # Each round caps at least one more expert, and at most k can be capped.
    for _ in range(top_k):
        room = top_k - capped.sum(axis=-1, keepdims=True)
        free_weight = np.where(capped, 0.0, q).sum(axis=-1, keepdims=True)
        share = room * q / np.where(free_weight > 0, free_weight, 1.0)
        over = ~capped & (share > 1.0)
        if not over.any():
            break
        capped |= over
    room = top_k - capped.sum(axis=-1, keepdims=True)
    free_weight = np.where(capped, 0.0, q).sum(axis=-1, keepdims=True)
    share = room * q / np.where(free_weight > 0, free_weight, 1.0)
    return np.where(np.isnan(q), np.nan, np.where(capped, 1.0, np.minimum(share, 1.0)))


def _mean_terms(
    selected: NDArray[np.float64], tokens: int, top_k: int, experts: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each expert's mean part of both divergences at N tokens, float64 [..., E].

    The binomial sum takes every ⌈σ/4⌉-th count within ±9 σ of the mean, which for a summand this
    smooth is as good as taking all of them (tested: to eight digits).
    """
    q: NDArray[np.float64] = selected / top_k
    deviation = np.sqrt(tokens * selected * (1.0 - selected))
    step = np.maximum(np.ceil(deviation / _STEPS_PER_DEVIATION), 1.0)
    step = np.where(np.isnan(step), 1.0, step)
    middle = np.round(np.where(np.isnan(selected), 0.0, tokens * selected))
    offsets = np.arange(-_REACH, _REACH + 1, dtype=np.float64)
    counts = middle[..., None] + offsets * step[..., None]
    possible = (counts >= 0) & (counts <= tokens)
    counts = np.clip(counts, 0, tokens)
    weight = np.where(possible, _binomial(counts.astype(np.int64), tokens, selected), 0.0)
    weight /= weight.sum(axis=-1, keepdims=True)
    half = 0.5 * experts
    p = (counts + half * q[..., None]) / (tokens * top_k + half)
    js, kl = divergence_terms(p, np.broadcast_to(q[..., None], p.shape))
    mean_js: NDArray[np.float64] = (weight * js).sum(axis=-1)
    mean_kl: NDArray[np.float64] = (weight * kl).sum(axis=-1)
    return mean_js, mean_kl


def _binomial(
    counts: NDArray[np.int64], tokens: int, selected: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Binomial probabilities of counts [..., C] among `tokens` trials, chance `selected` [...]."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, tokens + 1)))])
    ways = log_factorial[tokens] - log_factorial[counts] - log_factorial[tokens - counts]
    chance = selected[..., None]
    certain = chance >= 1.0
    exponent = (
        ways
        + counts * np.log(np.where(certain, 0.5, chance))
        + (tokens - counts) * np.log1p(-np.where(certain, 0.5, chance))
    )
    probability: NDArray[np.float64] = np.where(certain, counts == tokens, np.exp(exponent))
    return probability
