from __future__ import annotations

import math

import numpy as np
import pytest

from moescope.core.errors import InputError
from moescope.core.metrics import BY_NAME
from moescope.core.router_sums import FIXED_POINT, LAGS, ROUTER_SUMS, LagSums, RouterSum
from moescope.processors.metrics import lag_overlap, overlap_chance, router_metrics


def _draw(rng: np.random.Generator, tokens: int, shares: list[float], top_k: int) -> np.ndarray:
    """Sets of k distinct experts, bool [tokens, E], by the Gumbel trick."""
    noisy = np.log(shares) + rng.gumbel(size=(tokens, len(shares)))
    return noisy >= np.sort(noisy, axis=1)[:, -top_k, None]


def test_averages_of_the_sums() -> None:
    """Each mean is over its own rows: scores, pairs and ranked pairs are counted apart."""
    router = np.zeros((1, 2, ROUTER_SUMS), np.int64)
    router[0, 0, RouterSum.ENTROPY_ROWS] = 4
    router[0, 0, RouterSum.ENTROPY] = 3 * FIXED_POINT
    router[0, 0, RouterSum.MARGIN_ROWS] = 2
    router[0, 0, RouterSum.MARGIN] = FIXED_POINT // 4
    router[0, 0, RouterSum.PAIRS] = 5
    router[0, 0, RouterSum.OVERLAP] = 7
    router[0, 0, RouterSum.RANKED_PAIRS] = 8
    router[0, 0, RouterSum.TOP1_SWITCHES] = 6
    values = router_metrics(router, [[[2, 2, 4, 0], [0, 0, 0, 0]]], 2)
    assert {name: float(value[0, 0]) for name, value in values.items()} == {
        "router_entropy": 0.75,
        "router_margin": 0.125,
        "topk_overlap": 0.7,
        "top1_switches": 75.0,
        "overlap_chance": 2 * (1 + 1 + 4) / 16,
    }
    assert all(math.isnan(value[0, 1]) for value in values.values())


def test_overlap_of_independent_tokens_is_the_chance() -> None:
    """Tokens that choose independently overlap as often as the load alone says."""
    rng = np.random.default_rng(5)
    sets = _draw(rng, 40_000, [0.3, 0.2, 0.2, 0.1, 0.1, 0.1], 2)
    common = (sets[1:] & sets[:-1]).sum()
    router = np.zeros((1, ROUTER_SUMS), np.int64)
    router[0, [RouterSum.PAIRS, RouterSum.OVERLAP]] = len(sets) - 1, common
    values = router_metrics(router, sets.sum(axis=0)[None], 2)
    assert values["topk_overlap"][0] == pytest.approx(values["overlap_chance"][0], abs=0.005)
    assert values["overlap_chance"][0] > 2 / 6 + 0.02


@pytest.mark.parametrize(("experts", "top_k"), [(64, 8), (8, 2), (7, 5), (5, 5), (1, 1)])
def test_chance_attains_its_bounds(experts: int, top_k: int) -> None:
    """Uniform load gives k/E; all tokens on the same k experts give 1."""
    same = np.where(np.arange(experts) < top_k, 1_000, 0)
    low, high = BY_NAME["overlap_chance"].bounds(experts, top_k)
    assert overlap_chance(np.full(experts, 7), top_k) == pytest.approx(low)
    assert overlap_chance(same, top_k) == pytest.approx(high)


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (7, 5), (4, 4)])
def test_overlap_cannot_be_below_its_bound(experts: int, top_k: int) -> None:
    """Two sets of k experts that share as little as possible share 2k − E of them."""
    one = set(range(top_k))
    other = set(range(experts - top_k, experts))
    low, high = BY_NAME["topk_overlap"].bounds(experts, top_k)
    assert len(one & other) / top_k == low
    assert len(one & one) / top_k == high


def test_chance_does_not_overflow() -> None:
    """Squares of the longest window's counts leave 64-bit integers."""
    assert overlap_chance(np.array([2**45, 2**45], np.uint64), 1) == 0.5


def test_misfitting_sums_are_refused() -> None:
    """Sums of another number of layers would be averaged with the wrong counts."""
    with pytest.raises(InputError, match="Router sums need"):
        router_metrics(np.zeros((2, ROUTER_SUMS), np.int64), [[1, 2], [3, 4], [5, 6]], 1)


def test_lag_overlap_per_lag() -> None:
    """Each lag has its own pairs; a lag that no request is long enough for is null."""
    overlap, pairs = np.zeros((2, 2, LAGS), np.int64)
    overlap[0, 0], pairs[0, 0] = 9, 6
    overlap[0, 7], pairs[0, 7] = 0, 2
    lags = lag_overlap(LagSums(overlap=overlap, pairs=pairs), 3)
    assert lags.shape == (2, LAGS)
    assert (lags[0, 0], lags[0, 7]) == (0.5, 0.0)
    assert np.isnan(lags).sum() == 2 * LAGS - 2
