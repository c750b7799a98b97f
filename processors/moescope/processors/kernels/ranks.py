"""Popularity ranks of a block of rows, undone from their gaps, also as words of bits."""

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
    sums: NDArray[np.uint16],
) -> bool:
    """Undo the gaps of a block, and mark its suspicious rows.

    One simple operation per loop, over slices that start at 0: so each becomes vector code. That
    needs the running sums in an array of their own: a plane of ranks that is made from the plane
    before might overlap it, for all that the compiler knows.

    Args:
        gaps: [k, L, T]. layer, block, width, experts: which rows of it, E.
        ranks: out, uint16 [k, BLOCK].
        bad: out, uint8 [BLOCK], not 0 where a row is suspicious.
        sums: uint16 [BLOCK], overwritten.

    Returns:
        Whether any row is suspicious.
    """
    top_k = gaps.shape[0]
    limit = np.uint16(experts)
    marks = bad[:width]
    marks[:] = 0
    running = sums[:width]
    running[:] = 0
    for j in range(top_k):
        gap = gaps[j, layer, block : block + width]
        out = ranks[j, :width]
        for i in range(width):
            rank = running[i] + np.uint16(gap[i])
            running[i] = rank
            out[i] = rank
        if j > 0:
            for i in range(width):
                marks[i] |= np.uint8(gap[i] == 0)
    any_bad = np.uint8(0)
    for i in range(width):
        marks[i] |= np.uint8(running[i] >= limit)
        any_bad |= marks[i]
    return bool(any_bad != 0)


@compiled
def word_of_block(ranks: NDArray[np.uint16], width: int, words: NDArray[np.uint64]) -> None:
    """Sets of ranks as bits, of up to 64 experts.

    Args:
        ranks: uint16 [k, BLOCK].
        width: rows of the block.
        words: out, uint64 [at least width]: as in `words_of_block`.
    """
    one = np.uint64(1)
    places = np.uint16(WORD - 1)
    out = words[:width]
    out[:] = 0
    for j in range(len(ranks)):
        plane = ranks[j, :width]
        for i in range(width):
            out[i] |= one << np.uint64(plane[i] & places)


@compiled
def words_of_block(ranks: NDArray[np.uint16], width: int, words: NDArray[np.uint64]) -> None:
    """Sets of ranks as bits.

    Args:
        ranks: uint16 [k, BLOCK].
        width: rows of the block.
        words: out, uint64 [W, BLOCK]: word w of a row has bit b set where it has rank 64 w + b.
            Only rows without ranks beyond get words that mean something.
    """
    if len(words) == 1:
        word_of_block(ranks, width, words[0])
        return
    places = np.uint16(WORD - 1)
    for word in range(len(words)):
        out = words[word, :width]
        out[:] = 0
        for j in range(len(ranks)):
            plane = ranks[j, :width]
            for i in range(width):
                here = np.uint64(plane[i] // np.uint16(WORD) == word)
                out[i] |= here << np.uint64(plane[i] & places)


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
