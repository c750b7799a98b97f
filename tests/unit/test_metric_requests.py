from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from oracles import metrics_plain as oracle

from moescope.core.errors import InputError
from moescope.core.metrics import BY_NAME
from moescope.core.router_sums import FIXED_POINT, PositionCounts, SimilaritySums
from moescope.processors.metrics import positional_agreement, request_similarity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Vectors = Sequence[Sequence[int]]

EXPERTS, TOP_K = 6, 2

expert_set = st.sets(st.integers(0, EXPERTS - 1), min_size=TOP_K, max_size=TOP_K)
at_positions = st.dictionaries(st.integers(0, 4), st.lists(expert_set, max_size=5), max_size=3)
vectors = st.lists(st.lists(st.integers(0, 3 * FIXED_POINT), min_size=3, max_size=3), max_size=5)


def _dense(layers: list[dict[int, list[set[int]]]]) -> NDArray[np.int64]:
    counts = np.zeros((5, len(layers), EXPERTS), np.int64)
    for layer, positions in enumerate(layers):
        for position, sets in positions.items():
            for chosen in sets:
                counts[position, layer, list(chosen)] += 1
    return counts


def _sparse(counts: NDArray[np.int64]) -> PositionCounts:
    index = np.flatnonzero(counts.reshape(-1))
    return PositionCounts(index=index, count=counts.reshape(-1)[index])


def _pane(of_layer: Sequence[Vectors], start: int = 0) -> SimilaritySums:
    return SimilaritySums(
        start_us=start,
        size_us=1_000_000,
        weighted=np.array([np.array(v, np.int64).reshape(-1, 3).sum(axis=0) for v in of_layer]),
        squares=np.array([sum(x * x for w in v for x in w) for v in of_layer], np.int64),
        requests=np.array([len(v) for v in of_layer], np.int64),
        left_out=np.zeros(len(of_layer), np.int64),
    )


def _similarity_of_requests(counts: NDArray[np.int64], tokens: int) -> float:
    """Of requests [R, E] with k = 2, weighted as `SimilaritySums` says."""
    square = (counts.astype(float) ** 2).sum(axis=1)
    w = counts / np.sqrt((square - TOP_K * tokens) * tokens / (tokens - 1))[:, None]
    fixed = np.rint(w * FIXED_POINT).astype(np.int64)
    sums = SimilaritySums(
        start_us=0,
        size_us=1_000_000,
        weighted=fixed.sum(axis=0)[None],
        squares=(fixed**2).sum()[None],
        requests=np.array([len(counts)]),
        left_out=np.array([0]),
    )
    return float(request_similarity([sums])[0])


def _requests(
    rng: np.random.Generator, shares: NDArray[np.float64], tokens: int
) -> NDArray[np.int64]:
    """Counts [R, E] of requests whose tokens draw k = 2 experts by each request's shares."""
    noisy = np.log(shares)[:, None] + rng.gumbel(size=(len(shares), tokens, shares.shape[1]))
    chosen = noisy >= np.sort(noisy, axis=2)[..., -TOP_K, None]
    return np.asarray(chosen.sum(axis=1))


@examples(max_examples=50)
@given(st.lists(at_positions, min_size=1, max_size=2))
def test_agreement_equals_the_mean_over_pairs(layers: list[dict[int, list[set[int]]]]) -> None:
    """From summed counts alone comes the mean overlap of all pairs of requests."""
    counts = _dense(layers)
    actual = positional_agreement(counts, TOP_K, len(layers), EXPERTS)
    for layer, positions in enumerate(layers):
        expected = oracle.agreement(positions, TOP_K)
        if expected is None:
            assert math.isnan(actual[layer])
        else:
            assert actual[layer] == pytest.approx(expected, rel=1e-12)
            low, high = BY_NAME["positional_agreement"].bounds(EXPERTS, TOP_K)
            assert low <= actual[layer] <= high
    sparse = positional_agreement(_sparse(counts), TOP_K, len(layers), EXPERTS)
    assert np.array_equal(sparse, actual, equal_nan=True)


def test_a_fixed_prefix_agrees_wholly() -> None:
    """Requests that start with the same tokens route the same at the same position."""
    assert positional_agreement(_dense([{0: [{1, 2}] * 9, 3: [{0, 5}] * 4}]), 2, 1, 6) == 1.0
    assert positional_agreement(_dense([{0: [{0, 1}, {2, 3}, {4, 5}]}]), 2, 1, 6) == 0.0


def test_agreement_of_many_requests_is_exact_and_limited() -> None:
    """Squares of the counts at a busy position fit; beyond the limit is an error, no wrap."""
    many = 2**27
    counts = np.array([[[many, many]]])
    assert positional_agreement(counts, 2, 1, 2) == 1.0
    with pytest.raises(InputError, match="too many assignments"):
        positional_agreement(2 * counts, 2, 1, 2)
    with pytest.raises(InputError, match=r"must be \[positions, 1, 3\]"):
        positional_agreement(counts, 2, 1, 3)


@examples(max_examples=50)
@given(st.lists(st.tuples(vectors, vectors), min_size=1, max_size=3))
def test_similarity_equals_the_mean_over_pairs(panes: list[tuple[Vectors, Vectors]]) -> None:
    """From sums alone comes the mean product of all pairs of requests within a pane."""
    actual = request_similarity([_pane(pane, start) for start, pane in enumerate(panes)])
    for layer in range(2):
        expected = oracle.similarity([pane[layer] for pane in panes])
        if expected is None:
            assert math.isnan(actual[layer])
        else:
            assert actual[layer] == pytest.approx(expected / FIXED_POINT**2, rel=1e-12, abs=1e-15)


@examples(max_examples=40)
@given(st.lists(st.tuples(vectors, st.integers(0, 1)), min_size=1, max_size=6))
def test_partitions_of_a_pane_add(parts: list[tuple[Vectors, int]]) -> None:
    """However requests are spread over partitions, the pane's similarity is the same."""
    split = [_pane([requests], start) for requests, start in parts]
    whole = [
        _pane([[w for requests, at in parts if at == start for w in requests]], start)
        for start in {start for _, start in parts}
    ]
    assert np.array_equal(request_similarity(split), request_similarity(whole), equal_nan=True)


@pytest.mark.parametrize("size", [2**40, 2**47, 2**61])
def test_squares_are_wider_than_64_bits(size: int) -> None:
    """Sums of many requests are squared exactly, whatever their size and sign."""
    weighted = np.array([[size - 1, -(size // 3), 5]])
    pane = SimilaritySums(
        start_us=0, size_us=1, weighted=weighted, squares=np.array([7]),
        requests=np.array([3]), left_out=np.array([0]),
    )  # fmt: skip
    exact = (sum(x * x for x in weighted[0].tolist()) - 7) / (6 * FIXED_POINT**2)
    assert request_similarity([pane])[0] == exact


def test_damaged_sums_are_refused() -> None:
    """Sums beyond 64 bits would wrap to a plausible number."""
    pane = SimilaritySums(
        start_us=0, size_us=1, weighted=np.array([[2**62]]), squares=np.array([1]),
        requests=np.array([1]), left_out=np.array([0]),
    )  # fmt: skip
    with pytest.raises(InputError, match="beyond 64 bits"):
        request_similarity([pane, pane])
    with pytest.raises(InputError, match="at least one pane"):
        request_similarity([])


@pytest.mark.parametrize("tokens", [32, 200])
def test_similarity_does_not_measure_the_number_of_tokens(tokens: int) -> None:
    """Requests of one skewed load are alike by 1 whether they are short or long."""
    rng = np.random.default_rng(11)
    skewed = np.tile([0.4, 0.25, 0.15, 0.1, 0.05, 0.05], (400, 1))
    alike = _similarity_of_requests(_requests(rng, skewed, tokens), tokens)
    assert alike == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("tokens", [32, 200])
def test_requests_on_experts_of_their_own_are_not_alike(tokens: int) -> None:
    """Requests that prefer unrelated experts are alike by little more than their evenness."""
    rng = np.random.default_rng(12)
    experts = 128
    own = np.full((200, experts), 1e-6)
    for request in own:
        request[rng.choice(experts, 4, replace=False)] = 1.0
    alike = _similarity_of_requests(_requests(rng, own, tokens), tokens)
    # Two random sets of 4 among 128 experts share 1/8 of an expert: 4/128 in cosine.
    assert alike == pytest.approx(4 / experts, abs=0.02)
