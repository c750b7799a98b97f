from __future__ import annotations

from dataclasses import replace

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.emission import LaneKey, SharedDelta
from moescope.core.router_sums import (
    LAGS,
    ROUTER_SUMS,
    LagSums,
    PositionCounts,
    SimilaritySums,
)
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.processors.merge import merge_deltas

LANE = LaneKey("live", "moe", "r1", "model", "full", 1.0, 4, 2, (0,))


def _delta(seen: int = 1) -> SharedDelta:
    return SharedDelta(
        lane=LANE, phase="decode", kind=WindowKind.TIME, scope_kind=ScopeKind.ALL, scope_value="",
        pane=7, counts=np.full((1, 4), seen, np.uint32), dropped=np.zeros(1, np.uint64), seen=seen,
        first_time_us=NO_TIME, last_time_us=NO_TIME, request_gaps=np.zeros(3, np.int64),
    )  # fmt: skip


def _similarity(weight: int) -> SimilaritySums:
    one = np.array([weight])
    return SimilaritySums(0, 8, np.full((1, 4), weight), one, one, one)


def test_sums_of_a_pane_add_up() -> None:
    """Partitions and commits add: router sums, sparse positions, similarity and lags."""
    lags = np.ones((1, LAGS), np.int64)
    parts = [
        replace(
            _delta(),
            router=np.full((1, ROUTER_SUMS), number),
            positions=PositionCounts(np.array([number, 9]), np.array([1, number])),
            similarity=_similarity(number),
            lags=LagSums(number * lags, lags),
        )
        for number in (3, 5)
    ]
    (merged,) = merge_deltas(parts)
    assert merged.router is not None
    assert merged.router.tolist() == [[8] * ROUTER_SUMS]
    assert merged.positions is not None
    assert merged.positions.index.tolist() == [3, 5, 9]
    assert merged.positions.count.tolist() == [1, 1, 8]
    assert merged.lags is not None
    assert merged.lags.overlap.tolist() == [[8] * LAGS]
    assert merged.lags.pairs.tolist() == [[2] * LAGS]
    assert merged.similarity is not None
    assert merged.similarity.weighted.tolist() == [[8] * 4]
    assert (merged.similarity.start_us, merged.similarity.size_us) == (0, 8)
    assert merged.similarity.requests.tolist() == [8]


def test_similarity_joins_the_rows_of_its_last_second() -> None:
    """The delta of a similarity pane has no rows; merging it with one that has keeps both."""
    (merged,) = merge_deltas([_delta(4), replace(_delta(0), similarity=_similarity(2))])
    assert merged.seen == 4
    assert merged.similarity is not None
    assert merged.router is None
    assert merged.positions is None
    assert merged.lags is None
