"""Router sums of a run of rows at one layer: scores, overlap and top-1 switches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from moescope.core.router_sums import RouterSum
from moescope.processors.compilation import compiled
from moescope.processors.kernels.pairs import shared_with

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENTROPY_ROWS = int(RouterSum.ENTROPY_ROWS)
MARGIN_ROWS = int(RouterSum.MARGIN_ROWS)
PAIRS = int(RouterSum.PAIRS)
OVERLAP = int(RouterSum.OVERLAP)
RANKED_PAIRS = int(RouterSum.RANKED_PAIRS)
TOP1_SWITCHES = int(RouterSum.TOP1_SWITCHES)

NOT_A_SCORE = -1
"""In a score table: a code that stands for no score."""


class RouterPlanes(NamedTuple):
    """What a batch tells of its router besides ids; absent planes have no layers.

    Attributes:
        top1: uint8 [L, T].
        entropy, margin: codes [L, T].
        entropy_table, margin_table: int64 by code, fixed-point; `NOT_A_SCORE` where it is none.
    """

    top1: NDArray[np.uint8]
    entropy: NDArray[np.unsignedinteger[Any]]
    margin: NDArray[np.unsignedinteger[Any]]
    entropy_table: NDArray[np.int64]
    margin_table: NDArray[np.int64]


@compiled
def scores_of_block(
    codes: NDArray[np.unsignedinteger[Any]], table: NDArray[np.int64], scores: NDArray[np.int64]
) -> None:
    """Look the codes of a block's rows up."""
    for i in range(len(codes)):
        scores[i] = table[codes[i]]


@compiled
def add_scores(
    scores: NDArray[np.int64],
    bad: NDArray[np.uint8],
    begin: int,
    end: int,
    column: int,
    out: NDArray[np.int64],
) -> None:
    """Add the scores of a run's sound rows: their number to `column`, their sum to the next."""
    rows = 0
    total = 0
    for i in range(begin, end):
        if scores[i] != NOT_A_SCORE and not bad[i]:
            rows += 1
            total += scores[i]
    out[column] += rows
    out[column + 1] += total


@compiled
def switches_of_block(
    top1: NDArray[np.uint8], ranks: NDArray[np.uint16], switched: NDArray[np.uint16]
) -> None:
    """Mark rows of a block whose first rank differs from that of the row above.

    Args:
        top1: uint8 [width], of the block's rows.
        ranks: uint16 [k, BLOCK].
        switched: out, uint16 [width]; the first one is 0.
    """
    last = ranks[top1[0], 0]
    for i in range(len(top1)):
        top = ranks[top1[i], i]
        switched[i] = top != last
        last = top


@compiled
def drop_pairs_of_bad_rows(
    bad: NDArray[np.uint8],
    width: int,
    paired: NDArray[np.uint16],
    shared: NDArray[np.uint16],
    switched: NDArray[np.uint16],
) -> None:
    """Say in `paired` which rows make a sound pair with the row above; clear the others."""
    paired[0] = 0
    for i in range(1, width):
        sound = not (bad[i] or bad[i - 1])
        paired[i] = sound
        if not sound:
            shared[i] = 0
            switched[i] = 0


@compiled
def add_distant_pair(
    gaps: NDArray[np.unsignedinteger[Any]],
    top1: NDArray[np.uint8],
    layer: int,
    experts: int,
    before: int,
    ranks: NDArray[np.uint16],
    row: int,
    place: int,
    scratch: NDArray[np.uint16],
    out: NDArray[np.int64],
) -> None:
    """Add the pair of a sound row of the block and a row of the batch that is not the one above.

    Args:
        gaps, top1: of the batch.
        layer, experts: which layer, E.
        before: the other row of the batch.
        ranks: of the block.
        row: the row, in the block.
        place: the row, in the batch.
        scratch: uint16 [k].
        out: int64 [ROUTER_SUMS], added to.
    """
    hits = shared_with(gaps, layer, before, experts, ranks, row, scratch)
    if hits >= 0:
        out[PAIRS] += 1
        out[OVERLAP] += hits
        if len(top1) > 0:
            out[RANKED_PAIRS] += 1
            out[TOP1_SWITCHES] += ranks[top1[layer, place], row] != scratch[top1[layer, before]]
