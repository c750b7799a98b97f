"""Popularity ranks of a block of rows, undone from their gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.processors.compilation import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 256
"""Rows whose ranks are worked out together: k x 256 values stay in the first-level cache."""

WORD = 64
"""Up to so many experts, a row is one word with a bit per rank."""


@compiled
def ranks_of_block(
    gaps: NDArray[np.unsignedinteger[Any]],
    layer: int,
    block: int,
    width: int,
    experts: int,
    ranks: NDArray[np.uint16],
    bad: NDArray[np.uint8],
) -> bool:
    """Undo the gaps of a block, and mark its suspicious rows.

    One simple operation per loop, over slices that start at 0: so each becomes vector code.
    """
    top_k = gaps.shape[0]
    limit = np.uint16(experts)
    marks = bad[:width]
    marks[:] = 0
    current = ranks[0, :width]
    first = gaps[0, layer, block : block + width]
    for i in range(width):
        current[i] = first[i]
    for j in range(1, top_k):
        gap = gaps[j, layer, block : block + width]
        before = ranks[j - 1, :width]
        after = ranks[j, :width]
        for i in range(width):
            after[i] = before[i] + np.uint16(gap[i])
        for i in range(width):
            marks[i] |= np.uint8(gap[i] == 0)
    last = ranks[top_k - 1, :width]
    any_bad = np.uint8(0)
    for i in range(width):
        marks[i] |= np.uint8(last[i] >= limit)
        any_bad |= marks[i]
    return bool(any_bad != 0)


@compiled
def words_of_block(ranks: NDArray[np.uint16], width: int, words: NDArray[np.uint64]) -> None:
    """One word per row, with the bits of its ranks set.

    Only rows whose ranks are all below 64 get a word that means something.
    """
    out = words[:width]
    out[:] = 0
    for j in range(len(ranks)):
        plane = ranks[j, :width]
        for i in range(width):
            out[i] |= np.uint64(1) << np.uint64(plane[i] & np.uint16(WORD - 1))


@compiled
def ranks_of_row(
    gaps: NDArray[np.unsignedinteger[Any]],
    layer: int,
    row: int,
    experts: int,
    ranks: NDArray[np.uint16],
) -> bool:
    """Undo the gaps of one row into `ranks` [k]; says whether it is sound."""
    sound = True
    rank = 0
    for j in range(len(ranks)):
        gap = gaps[j, layer, row]
        if j > 0 and gap == 0:
            sound = False
        rank += gap
        ranks[j] = rank
    return sound and rank < experts
