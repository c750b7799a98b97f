"""Second pass: gap planes to counts per cell and layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.processors.compilation import compiled
from moescope.processors.kernels.ranks import BLOCK, WORD, ranks_of_block, words_of_block
from moescope.processors.kernels.router import (
    ENTROPY_ROWS,
    MARGIN_ROWS,
    RouterPlanes,
    add_distant_pair,
    add_pairs,
    add_scores,
    drop_pairs_of_bad_rows,
    pairs_of_block,
    scores_of_block,
)
from moescope.processors.kernels.runs import MOST_ROWS, RUN, end_of_block, find_runs
from moescope.processors.kernels.tally import (
    BYTES,
    count_doubtful_run,
    count_long_run,
    count_short_run,
    count_words,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONG_RUN = 8
"""From here on it pays to count ranks first, and to look their experts up once per run."""

MOST_WORDS = 2
"""Up to so many words per row, bits are faster than ranks one by one."""


@compiled
def count_rows(
    gaps: NDArray[np.unsignedinteger[Any]],
    relabelling: NDArray[np.uint16],
    skipped_layers: NDArray[np.bool_],
    planes: RouterPlanes,
    begin: int,
    end: int,
    cell_of_row: NDArray[np.int32],
    before_cell: NDArray[np.int64],
    counts: NDArray[np.uint16],
    router: NDArray[np.int64],
) -> int:
    """Count the expert ids of rows `begin … end` by cell, and sum up what goes with them.

    Cells are cleared when their first row is met, so that they are still near when they are
    counted. So cells have to ascend from row to row, and to have no rows elsewhere.

    Args:
        gaps: uint8 or uint16 [k, L, T].
        relabelling: uint16 [L, E], popularity rank to expert.
        skipped_layers: bool [L]; layers that a gate has taken out for this batch.
        planes: what else the router told.
        begin, end: rows.
        cell_of_row: int32 [T]; −1 is skipped.
        before_cell: int64 [cells]; row of the batch that a cell's first row makes a pair with.
        counts: out, uint16 [cells, L, E].
        router: out, int64 [cells, L, ROUTER_SUMS]. Without cells: not wanted.

    Returns:
        Number of suspicious (row, layer) pairs: fewer than k distinct ids, or an id ≥ E. They
        are not counted.
    """
    top_k, layers, _ = gaps.shape
    experts = relabelling.shape[1]
    # 16 bits are enough: a valid batch has no rank above MAX_EXPERTS.
    ranks = np.empty((top_k, BLOCK), np.uint16)
    sums = np.empty(BLOCK, np.uint16)
    scratch = np.empty(top_k, np.uint16)
    bad = np.empty(BLOCK, np.uint8)
    n_words = -(-experts // WORD) if experts <= MOST_WORDS * WORD else 0
    words = np.empty((n_words, BLOCK), np.uint64)
    tables = _padded(relabelling)
    even = np.zeros(experts, np.uint16)
    odd = np.zeros(experts, np.uint16)
    shared = np.empty(BLOCK, np.uint16)
    firsts = np.empty(BLOCK, np.uint16)
    pairs = np.empty(BLOCK, np.int64)
    scores = np.empty(BLOCK, np.int64)
    runs = np.empty(BLOCK, RUN)
    with_router = len(router) > 0
    ranked = len(planes.top1) > 0
    no_top1 = np.empty(0, np.uint8)
    suspicious = 0
    cleared = 0
    block_end = begin
    while block_end < end:
        block = block_end
        block_end = end_of_block(cell_of_row, block, MOST_ROWS, end)
        lead = 1 if with_router and block > 0 else 0
        n_runs = find_runs(cell_of_row, before_cell, begin, block, block_end, lead, runs)
        start = block - lead
        width = block_end - start
        longest = 0
        for index in range(n_runs):
            longest = max(longest, runs[index]["end"] - runs[index]["begin"])
        if n_runs == 0:
            continue
        cleared = _clear(counts, router, cleared, runs[n_runs - 1]["cell"] + 1)
        for layer in range(layers):
            table = tables[layer]
            any_bad = ranks_of_block(gaps, layer, start, width, experts, ranks, bad, sums)
            if skipped_layers[layer]:
                bad[:width] = 1
                any_bad = True
            if n_words > 0 and (with_router or longest >= LONG_RUN):
                words_of_block(ranks, width, words)
            if with_router:
                top1 = planes.top1[layer, start : start + width] if ranked else no_top1
                pairs_of_block(ranks, words, top1, width, firsts, shared, pairs)
                if any_bad:
                    drop_pairs_of_bad_rows(bad, width, pairs)
            for index in range(n_runs):
                run_begin = runs[index]["begin"]
                run_end = runs[index]["end"]
                cell = runs[index]["cell"]
                target = counts[cell, layer]
                if any_bad:
                    suspicious += count_doubtful_run(ranks, bad, run_begin, run_end, table, target)
                elif run_end - run_begin < LONG_RUN:
                    count_short_run(ranks, run_begin, run_end, table, target)
                elif n_words > 0:
                    for word in range(n_words):
                        of_word = table[word * WORD : (word + 1) * WORD]
                        count_words(words[word, run_begin:run_end], of_word, target)
                else:
                    count_long_run(ranks, run_begin, run_end, table, even, odd, target)
                if with_router:
                    out = router[cell, layer]
                    pairs_begin = runs[index]["pairs_begin"]
                    add_pairs(pairs, bad, any_bad, ranked, pairs_begin, run_end, out)
                    before = runs[index]["before"]
                    if before >= 0 and not bad[run_begin]:
                        add_distant_pair(
                            gaps, planes.top1, layer, experts, before, ranks, run_begin,
                            start + run_begin, scratch, out,
                        )  # fmt: skip
            if with_router and len(planes.entropy) > 0:
                codes = planes.entropy[layer, start : start + width]
                scores_of_block(codes, planes.entropy_table, bad, scores)
                add_scores(scores, runs, n_runs, layer, ENTROPY_ROWS, router)
            if with_router and len(planes.margin) > 0:
                codes = planes.margin[layer, start : start + width]
                scores_of_block(codes, planes.margin_table, bad, scores)
                add_scores(scores, runs, n_runs, layer, MARGIN_ROWS, router)
    _clear(counts, router, cleared, len(counts))
    return suspicious


@compiled
def _clear(counts: NDArray[np.uint16], router: NDArray[np.int64], begin: int, end: int) -> int:
    """Clear cells `begin … end`; says which comes next."""
    for cell in range(begin, end):
        counts[cell] = 0
        if len(router) > 0:
            router[cell] = 0
    return max(begin, end)


@compiled
def _padded(relabelling: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Relabellings up to the next multiple of 8 ranks, for `count_words`."""
    layers, experts = relabelling.shape
    padded = np.zeros((layers, -(-experts // BYTES) * BYTES), np.uint16)
    padded[:, :experts] = relabelling
    return padded


@compiled
def count_dropped(
    dropped: NDArray[np.bool_],
    begin: int,
    end: int,
    cell_of_row: NDArray[np.int32],
    counts: NDArray[np.uint64],
) -> None:
    """Count assignments dropped by capacity: bool [k, L, T] into uint64 [cells, L]."""
    top_k, layers, _ = dropped.shape
    for layer in range(layers):
        for row in range(begin, end):
            cell = cell_of_row[row]
            if cell >= 0:
                for j in range(top_k):
                    counts[cell, layer] += np.uint64(dropped[j, layer, row])


@compiled
def mark_identical(
    gaps: NDArray[np.unsignedinteger[Any]],
    request: NDArray[np.int32],
    position: NDArray[np.int32],
    identical: NDArray[np.bool_],
) -> None:
    """Mark rows whose expert sets equal those of the row before, at every layer.

    Only consecutive positions of one request compare; nearly every row differs at the first
    layer, so this reads little.
    """
    top_k, layers, tokens = gaps.shape
    for row in range(1, tokens):
        if request[row] != request[row - 1] or position[row] != position[row - 1] + 1:
            continue
        same = True
        for layer in range(layers):
            for j in range(top_k):
                if gaps[j, layer, row] != gaps[j, layer, row - 1]:
                    same = False
                    break
            if not same:
                break
        identical[row] = same
