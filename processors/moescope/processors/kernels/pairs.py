"""Pairs of neighbouring rows of a request: how much of their expert sets they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numba import types
from numba.extending import intrinsic

from moescope.processors.compilation import compiled
from moescope.processors.kernels.ranks import WORD, ranks_of_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def _popcount(_: Any, __: Any) -> Any:  # noqa: ANN401 (what numba hands over has no types)
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


popcount = cast("Callable[[np.uint64], int]", intrinsic(_popcount))
"""Number of bits set in a 64-bit word: one instruction, which numba has no name for."""


@compiled
def shared_with_row_above(
    ranks: NDArray[np.uint16], width: int, shared: NDArray[np.uint16]
) -> None:
    """Count in `shared[i]` the ranks that rows i − 1 and i of a block have both; `shared[0]` is 0.

    All pairs of planes are compared, in vector code: for rows of more than 64 possible ranks that
    is faster than bit sets or merging.
    """
    top_k = len(ranks)
    out = shared[1:width]
    shared[:width] = 0
    for j in range(top_k):
        here = ranks[j, 1:width]
        for other in range(top_k):
            above = ranks[other, : width - 1]
            for i in range(len(out)):
                out[i] += np.uint16(here[i] == above[i])


@compiled
def shared_with(
    gaps: NDArray[np.unsignedinteger[Any]],
    layer: int,
    before: int,
    experts: int,
    ranks: NDArray[np.uint16],
    row: int,
    scratch: NDArray[np.uint16],
) -> int:
    """Ranks that row `before` of the batch shares with row `row` of the block; −1: not sound.

    Args:
        gaps: [k, L, T].
        layer, before, experts: where to read the other row.
        ranks: uint16 [k, BLOCK], of the block.
        row: a sound row of the block.
        scratch: uint16 [k]; gets the other row's ranks.
    """
    if not ranks_of_row(gaps, layer, before, experts, scratch):
        return -1
    top_k = len(scratch)
    if experts <= WORD:
        mine = np.uint64(0)
        other = np.uint64(0)
        for j in range(top_k):
            mine |= np.uint64(1) << np.uint64(ranks[j, row])
            other |= np.uint64(1) << np.uint64(scratch[j])
        return popcount(mine & other)
    hits = 0
    j = 0
    for m in range(top_k):
        rank = ranks[m, row]
        while j < top_k and scratch[j] < rank:
            j += 1
        if j < top_k and scratch[j] == rank:
            hits += 1
    return hits
