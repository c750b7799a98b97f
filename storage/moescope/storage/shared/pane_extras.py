"""Sums of what panes know beside counts: positions, similarity panes, lags, passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.router_sums import (
    POSITIONS,
    LagSums,
    PassSums,
    PositionCounts,
    SimilaritySums,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def add_lags(one: LagSums, other: LagSums) -> LagSums:
    """Both together."""
    return LagSums(one.overlap + other.overlap, one.pairs + other.pairs)


def add_passes(one: PassSums, other: PassSums) -> PassSums:
    """Both together."""
    return PassSums(
        one.passes + other.passes,
        one.imbalance + other.imbalance,
        np.maximum(one.largest, other.largest),
    )


def add_similarity(one: SimilaritySums, other: SimilaritySums) -> SimilaritySums:
    """Two partitions' sums of the same similarity pane."""
    return SimilaritySums(
        one.start_us,
        one.size_us,
        one.weighted + other.weighted,
        one.squares + other.squares,
        one.requests + other.requests,
        one.left_out + other.left_out,
    )


def merge_positions(parts: Sequence[PositionCounts], cells: int) -> PositionCounts | None:
    """Sparse counts added up; None where there are none.

    Args:
        parts: Of panes, each with distinct indices.
        cells: L · E, the cells of one position.
    """
    if not parts:
        return None
    # Dense for a moment: sorting the indices of a minute's panes takes ten times as long.
    dense = np.zeros(len(POSITIONS) * cells, np.int64)
    for part in parts:
        dense[part.index] += part.count
    index = np.flatnonzero(dense)
    return PositionCounts(index, dense[index])
