"""Sparse counts at sampled positions: adding parts that share some, all or none of their places."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from moescope.core.router_sums import PositionCounts
from moescope.processors.pane_profiles import add_position_counts


def _part(counts: dict[int, int]) -> PositionCounts:
    places = sorted(counts)
    return PositionCounts(
        np.array(places, np.int64), np.array([counts[place] for place in places], np.int64)
    )


@pytest.mark.parametrize(
    "parts",
    [
        [{}],
        [{}, {}],
        [{7: 2}, {}],
        [{1: 1, 5: 2}, {1: 3, 5: 4}],
        [{9: 1}, {2: 1}, {2: 5, 9: 1, 11: 3}, {0: 1}],
    ],
)
def test_parts_add_up_place_by_place(parts: list[dict[int, int]]) -> None:
    """A place is there once, in order, with the sum of what the parts hold there."""
    total: Counter[int] = Counter()
    for part in parts:
        total.update(part)
    added = add_position_counts([_part(part) for part in parts])
    assert list(zip(added.index.tolist(), added.count.tolist(), strict=True)) == sorted(
        total.items()
    )
    assert added.index.dtype == added.count.dtype == np.int64
