"""Router sums of a run of rows at one layer: scores, overlap and top-1 switches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moescope.core.router_sums import RouterSum
from moescope.processors.compilation import compiled
from moescope.processors.kernels.pairs import popcount, shared_with, shared_with_row_above

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.processors.kernels.records import Records

ENTROPY_ROWS = int(RouterSum.ENTROPY_ROWS)
MARGIN_ROWS = int(RouterSum.MARGIN_ROWS)
PAIRS = int(RouterSum.PAIRS)
OVERLAP = int(RouterSum.OVERLAP)
RANKED_PAIRS = int(RouterSum.RANKED_PAIRS)
TOP1_SWITCHES = int(RouterSum.TOP1_SWITCHES)

SWITCH_BITS = 32
SWITCH = 1 << SWITCH_BITS
"""A switch of the first rank, beside ranks in common, in one number."""

NOT_A_SCORE = -1
"""In a score table: a code that stands for no score."""


SCORE_BITS = 48
ONE_SCORE = 1 << SCORE_BITS
"""Beside a score, in one number: half precision ends at 2^16, so 256 scores stay below 2^44."""


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
    codes: NDArray[np.unsignedinteger[Any]],
    table: NDArray[np.int64],
    bad: NDArray[np.uint8],
    scores: NDArray[np.int64],
) -> None:
    """Look the codes of a block's rows up: sound ones as `ONE_SCORE` and the score, others as 0."""
    for i in range(len(codes)):
        score = table[codes[i]]
        scores[i] = 0 if score == NOT_A_SCORE or bad[i] else score + ONE_SCORE


@compiled
def add_scores(
    scores: NDArray[np.int64],
    runs: Records,
    n_runs: int,
    layer: int,
    column: int,
    router: NDArray[np.int64],
) -> None:
    """Add the scores of runs: their number to `column` of the run's cell, their sum to the next."""
    for index in range(n_runs):
        total = 0
        for i in range(runs[index]["begin"], runs[index]["end"]):
            total += scores[i]
        out = router[runs[index]["cell"], layer]
        out[column] += total >> SCORE_BITS
        out[column + 1] += total & (ONE_SCORE - 1)


@compiled
def pairs_of_block(
    ranks: NDArray[np.uint16],
    words: NDArray[np.uint64],
    top1: NDArray[np.uint8],
    width: int,
    firsts: NDArray[np.uint16],
    shared: NDArray[np.uint16],
    pairs: NDArray[np.int64],
) -> None:
    """Compare each row of a block with the row above.

    Args:
        ranks: uint16 [k, BLOCK].
        words: uint64 [W, BLOCK], the same as bits; without words: not worked out.
        top1: uint8 [width], which rank stands first; empty: not known.
        width: rows of the block.
        firsts, shared: uint16 [BLOCK], overwritten.
        pairs: out, int64 [BLOCK]: ranks that both rows have, plus `SWITCH` where their first ranks
            differ. So one sum over a run gives both.
    """
    out = pairs[1:width]
    pairs[0] = 0
    if len(words) > 0:
        here, above = words[0, 1:width], words[0, : width - 1]
        for i in range(len(out)):
            out[i] = popcount(here[i] & above[i])
        for word in range(1, len(words)):
            here, above = words[word, 1:width], words[word, : width - 1]
            for i in range(len(out)):
                out[i] += popcount(here[i] & above[i])
    else:
        shared_with_row_above(ranks, width, shared)
        hits = shared[1:width]
        for i in range(len(out)):
            out[i] = hits[i]
    if len(top1) > 0:
        for i in range(width):
            firsts[i] = ranks[top1[i], i]
        top, top_above = firsts[1:width], firsts[: width - 1]
        for i in range(len(out)):
            out[i] += np.int64(top[i] != top_above[i]) << SWITCH_BITS


@compiled
def drop_pairs_of_bad_rows(bad: NDArray[np.uint8], width: int, pairs: NDArray[np.int64]) -> None:
    """Clear what rows have in common when one of them is not sound."""
    for i in range(1, width):
        if bad[i] or bad[i - 1]:
            pairs[i] = 0


@compiled
def add_pairs(
    pairs: NDArray[np.int64],
    bad: NDArray[np.uint8],
    any_bad: bool,  # noqa: FBT001 (a compiled function takes no keywords)
    ranked: bool,  # noqa: FBT001 - as above
    begin: int,
    end: int,
    out: NDArray[np.int64],
) -> None:
    """Add the pairs that rows `begin … end` of a block make with the rows above."""
    number = end - begin
    if any_bad:
        number = 0
        for i in range(begin, end):
            number += not (bad[i] or bad[i - 1])
    of_run = pairs[begin:end]
    total = 0
    for i in range(len(of_run)):
        total += of_run[i]
    out[PAIRS] += number
    out[OVERLAP] += total & (SWITCH - 1)
    if ranked:
        out[RANKED_PAIRS] += number
        out[TOP1_SWITCHES] += total >> SWITCH_BITS


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
