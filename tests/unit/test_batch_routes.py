from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support.batches import make_batch, make_ids

from moescope.core.batch import Routes
from moescope.core.batch_checks import BatchError
from moescope.core.batch_equality import batches_equal
from moescope.core.gap_planes import comparator_network
from moescope.core.quantise import weights_of
from moescope.core.vocabulary import RankOrder


@pytest.mark.parametrize("size", range(1, 13))
def test_network_sorts_every_input(size: int) -> None:
    """A comparator network that sorts all zeros and ones sorts everything."""
    for bits in itertools.product((0, 1), repeat=size):
        row = list(bits)
        for low, high in comparator_network(size):
            if row[low] > row[high]:
                row[low], row[high] = row[high], row[low]
        assert row == sorted(bits)


@pytest.mark.parametrize(("experts", "top_k"), [(8, 1), (60, 4), (64, 8), (300, 10), (128, 40)])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_ids_come_back_in_popularity_order(experts: int, top_k: int, dtype: type[Any]) -> None:
    """Every row keeps its ids, whatever type they came in, and the most popular stands first."""
    ids = make_ids(1, tokens=600, layers=3, experts=experts, top_k=top_k).astype(dtype)
    routes = Routes.from_ids(ids, experts)
    assert routes.expert_ids.dtype == np.uint16
    assert routes.shape == (600, 3, top_k)
    for layer, (row, back) in itertools.product(
        range(3), zip(ids[:40], routes.expert_ids[:40], strict=True)
    ):
        order = routes.relabelling[layer].tolist()
        assert back[layer].tolist() == sorted(row[layer].tolist(), key=order.index)


def test_popular_experts_get_the_small_ranks() -> None:
    """The relabelling is what makes ids cheap on the wire."""
    ids = make_ids(2, tokens=500, layers=2, experts=16, top_k=2, skew=2.0)
    relabelling = Routes.from_ids(ids, 16).relabelling
    for layer in range(2):
        counts = np.bincount(ids[:, layer].ravel(), minlength=16)
        assert counts[relabelling[layer]].tolist() == sorted(counts.tolist(), reverse=True)


def test_few_tokens_keep_the_identity() -> None:
    """A permutation that costs more than it saves is not sent."""
    routes = Routes.from_ids(make_ids(2, tokens=20, layers=1, experts=64, top_k=8), 64)
    assert routes.relabelling[0].tolist() == list(range(64))


def test_top1_points_at_the_first_column() -> None:
    """Sorting rows does not lose which expert won."""
    ids = make_ids(3, tokens=200, layers=3, experts=64, top_k=8)
    routes = Routes.from_ids(ids, 64, ranked=True)
    assert routes.top1 is not None
    index = routes.top1.T[:, :, None].astype(np.intp)
    assert np.array_equal(np.take_along_axis(routes.expert_ids, index, 2)[:, :, 0], ids[:, :, 0])


def test_companions_follow_their_ids() -> None:
    """Weights and dropped bits stay with their expert when rows are sorted."""
    rng = np.random.default_rng(4)
    ids = make_ids(4, tokens=150, layers=2, experts=32, top_k=4)
    weights = rng.random(ids.shape).astype(np.float16)
    dropped = rng.random(ids.shape) < 0.2
    entropy, margin = rng.random(ids.shape[:2]), rng.random(ids.shape[:2])
    routes = Routes.from_ids(
        ids, 32, weights=weights, weight_bits=16, dropped=dropped, entropy=entropy, margin=margin
    )
    assert routes.weights is not None
    assert routes.dropped is not None
    assert routes.entropy is not None
    assert routes.margin is not None
    back = weights_of(routes.weights)
    for token, layer in itertools.product(range(150), range(2)):
        sent = {
            int(expert): (float(weight), bool(drop))
            for expert, weight, drop in zip(
                ids[token, layer], weights[token, layer], dropped[token, layer], strict=True
            )
        }
        for place, expert in enumerate(routes.expert_ids[token, layer]):
            got = (float(back[place, layer, token]), bool(routes.dropped[place, layer, token]))
            assert got == sent[int(expert)]
    assert routes.entropy.codes.shape == routes.margin.codes.shape == (2, 150)
    assert np.argmax(routes.entropy.codes[1]) in np.flatnonzero(
        np.isclose(entropy[:, 1], entropy[:, 1].max(), atol=np.log(32) / 255)
    )


def test_invalid_ids_and_duplicates_are_kept() -> None:
    """What is suspicious is for the gates to count, so it must get there."""
    ids = make_ids(5, tokens=300, layers=1, experts=16, top_k=3)
    ids[0, 0] = [9, 9, 9]
    ids[1, 0] = [16, 2, 65_535]
    routes = Routes.from_ids(ids, 16)
    assert routes.expert_ids[0, 0].tolist() == [9, 9, 9]
    assert sorted(routes.expert_ids[1, 0].tolist()) == [2, 16, 65_535]
    assert routes.largest_rank == 65_535


def test_one_byte_is_used_where_it_is_enough() -> None:
    """Most models have at most 256 experts: half the memory and half the work."""
    narrow = Routes.from_ids(make_ids(6, tokens=9, layers=1, experts=256, top_k=2), 256)
    wide = Routes.from_ids(make_ids(6, tokens=9, layers=1, experts=257, top_k=2), 257)
    assert (narrow.gaps.itemsize, wide.gaps.itemsize) == (1, 2)


@pytest.mark.parametrize(
    ("ids", "experts"),
    [
        (np.zeros((2, 3), np.uint8), 8),
        (np.zeros((2, 0, 3), np.uint8), 8),
        (np.zeros((2, 1, 3), np.float32), 8),
        (np.full((2, 1, 3), -1, np.int32), 8),
        (np.full((2, 1, 3), 65_536, np.int32), 8),
        (np.zeros((2, 1, 3), np.uint8), 0),
        (np.zeros((2, 1, 3), np.uint8), 65_536),
    ],
)
def test_impossible_ids_are_refused(ids: Any, experts: int) -> None:
    """What has no place on the wire is an error where it is made."""
    with pytest.raises(BatchError):
        Routes.from_ids(ids, experts)


@pytest.mark.parametrize("name", ["weights", "dropped", "entropy", "margin"])
def test_companions_of_another_shape_are_refused(name: str) -> None:
    """A companion that belongs to other tokens is not broadcast over these."""
    companion: Any = {name: np.ones((1, 1, 1)[: 3 if name in ("weights", "dropped") else 2])}
    with pytest.raises(BatchError, match=name):
        Routes.from_ids(np.zeros((2, 2, 2), np.uint8), 8, **companion)


def test_equality_ignores_layout_and_sees_content() -> None:
    """Two layouts of the same ids are equal; one other id, weight, top-1 or header is not."""
    ids = make_ids(7, tokens=300, layers=2, experts=8, top_k=2)
    shape: dict[str, Any] = {"tokens": 300, "layers": 2, "experts": 8, "top_k": 2}
    ranked: dict[str, Any] = {
        "header": {"rank_order": RankOrder.WEIGHT},
        "routes": {"ranked": True, "weights": np.full(ids.shape, 0.5)},
    }
    batch = make_batch(expert_ids=ids, **shape, **ranked)
    reordered = make_batch(expert_ids=ids[:, :, ::-1], **shape)
    assert batches_equal(make_batch(expert_ids=ids, **shape), reordered)
    assert not batches_equal(batch, reordered)
    other_ids = ids.copy()
    other_ids[299, 1] = other_ids[299, 1, ::-1]
    assert not batches_equal(batch, make_batch(expert_ids=other_ids, **shape, **ranked))
    other_ids[299, 1] = [0, 0]
    assert not batches_equal(reordered, make_batch(expert_ids=other_ids, **shape))
    weights = np.full(ids.shape, 0.5)
    weights[0, 0, 0] = 0.6
    other_weights: dict[str, Any] = ranked | {"routes": {"ranked": True, "weights": weights}}
    assert not batches_equal(batch, make_batch(expert_ids=ids, **shape, **other_weights))
    assert not batches_equal(reordered, make_batch(expert_ids=ids, **shape, start_us=1))
    labelled = make_batch(expert_ids=ids, **shape, header={"labels": {"a": "b"}})
    assert not batches_equal(reordered, labelled)
