"""Second pass: gap planes to counts per cell and layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.processors.compilation import compiled
from moescope.processors.kernels.pairs import shared_with_row_above, shared_words
from moescope.processors.kernels.ranks import BLOCK, WORD, ranks_of_block, words_of_block
from moescope.processors.kernels.router import (
    ENTROPY_ROWS,
    MARGIN_ROWS,
    OVERLAP,
    PAIRS,
    RANKED_PAIRS,
    TOP1_SWITCHES,
    RouterPlanes,
    add_distant_pair,
    add_scores,
    drop_pairs_of_bad_rows,
    scores_of_block,
    switches_of_block,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONG_RUN = 16
"""From here on it pays to count ranks first, and to look their experts up once per run."""


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
    """Count the expert ids of rows `begin … end` into their cells, and sum up what goes with them.

    Args:
        gaps: uint8 or uint16 [k, L, T].
        relabelling: uint16 [L, E], popularity rank to expert.
        skipped_layers: bool [L]; layers that a gate has taken out for this batch.
        planes: what else the router told.
        begin, end: rows.
        cell_of_row: int32 [T]; −1 is skipped.
        before_cell: int64 [cells]; row of the batch that a cell's first row makes a pair with.
        counts: out, uint16 [cells, L, E]; added to.
        router: out, int64 [cells, L, ROUTER_SUMS]; added to. Without cells: not wanted.

    Returns:
        Number of suspicious (row, layer) pairs: fewer than k distinct ids, or an id ≥ E. They
        are not counted.
    """
    top_k, layers, _ = gaps.shape
    experts = relabelling.shape[1]
    # 16 bits are enough: a valid batch has no rank above MAX_EXPERTS.
    ranks = np.empty((top_k, BLOCK), np.uint16)
    scratch = np.empty(top_k, np.uint16)
    bad = np.empty(BLOCK, np.uint8)
    even = np.zeros(experts, np.uint16)
    odd = np.zeros(experts, np.uint16)
    words = np.empty(BLOCK, np.uint64)
    shared = np.empty(BLOCK, np.uint16)
    paired = np.ones(BLOCK, np.uint16)
    switched = np.zeros(BLOCK, np.uint16)
    entropies = np.empty(BLOCK, np.int64)
    margins = np.empty(BLOCK, np.int64)
    ranked = len(planes.top1) > 0
    sums = np.empty(WORD, np.uint64)
    with_router = len(router) > 0
    suspicious = 0
    for layer in range(layers):
        table = relabelling[layer]
        for block in range(begin, end, BLOCK):
            width = min(BLOCK, end - block)
            any_bad = ranks_of_block(gaps, layer, block, width, experts, ranks, bad)
            if skipped_layers[layer]:
                bad[:width] = 1
                any_bad = True
            cells = cell_of_row[block : block + width]
            has_words = with_router and experts <= WORD
            if with_router:
                if has_words:
                    words_of_block(ranks, width, words)
                    shared_words(words, width, shared)
                else:
                    shared_with_row_above(ranks, width, shared)
                if ranked:
                    top1 = planes.top1[layer, block : block + width]
                    switches_of_block(top1, ranks, switched)
                if any_bad:
                    drop_pairs_of_bad_rows(bad, width, paired, shared, switched)
                if len(planes.entropy) > 0:
                    codes = planes.entropy[layer, block : block + width]
                    scores_of_block(codes, planes.entropy_table, entropies)
                if len(planes.margin) > 0:
                    codes = planes.margin[layer, block : block + width]
                    scores_of_block(codes, planes.margin_table, margins)
            i = 0
            while i < width:
                cell = cells[i]
                run = i
                i += 1
                while i < width and cells[i] == cell:
                    i += 1
                if cell < 0:
                    continue
                target = counts[cell, layer]
                if any_bad:
                    for row in range(run, i):
                        if bad[row]:
                            suspicious += 1
                            continue
                        for j in range(top_k):
                            target[table[ranks[j, row]]] += np.uint16(1)
                elif i - run < LONG_RUN:
                    _count_short_run(ranks, run, i, table, target)
                elif experts <= WORD:
                    if not has_words:
                        words_of_block(ranks, width, words)
                        has_words = True
                    _add_words(words[run:i], sums)
                    for rank in range(experts):
                        target[table[rank]] += np.uint16(sums[rank])
                else:
                    _count_long_run(ranks, run, i, table, even, odd, target)
                if not with_router:
                    continue
                out = router[cell, layer]
                first = block + run
                before = before_cell[cell]
                if first > begin and cell_of_row[first - 1] == cell:
                    before = first - 1
                if run > 0 and before == first - 1:
                    begin_pairs = run
                else:
                    begin_pairs = run + 1
                    if before >= 0 and not bad[run]:
                        add_distant_pair(
                            gaps, planes.top1, layer, experts, before, ranks, run, first, scratch,
                            out,
                        )  # fmt: skip
                pairs = i - begin_pairs
                if any_bad:
                    pairs = 0
                    for row in range(begin_pairs, i):
                        pairs += paired[row]
                overlap = 0
                for row in range(begin_pairs, i):
                    overlap += shared[row]
                out[PAIRS] += pairs
                out[OVERLAP] += overlap
                if ranked:
                    switches = 0
                    for row in range(begin_pairs, i):
                        switches += switched[row]
                    out[RANKED_PAIRS] += pairs
                    out[TOP1_SWITCHES] += switches
                if len(planes.entropy) > 0:
                    add_scores(entropies, bad, run, i, ENTROPY_ROWS, out)
                if len(planes.margin) > 0:
                    add_scores(margins, bad, run, i, MARGIN_ROWS, out)
    return suspicious


@compiled
def _full_adder(
    first: np.uint64, second: np.uint64, third: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Add three bits at each of 64 places: sums and carries."""
    either = first ^ second
    return either ^ third, (first & second) | (either & third)


@compiled
def _add_words(words: NDArray[np.uint64], sums: NDArray[np.uint64]) -> None:
    """Count at each of 64 places in how many words its bit is set; at most 511 words.

    Counters stand upright: word b holds bit b of all 64 of them. Seven words become three by
    full adders (weights 1, 2, 4) before they are added (W. Muła, N. Kurz, D. Lemire, "Faster
    population counts using AVX2 instructions", 2018).

    Args:
        words: uint64 [rows].
        sums: out, uint64 [64].
    """
    zero = np.uint64(0)
    b0, b1, b2, b3, b4, b5, b6, b7, b8 = zero, zero, zero, zero, zero, zero, zero, zero, zero
    row = 0
    while row + 7 <= len(words):
        ones_1, twos_1 = _full_adder(words[row], words[row + 1], words[row + 2])
        ones_2, twos_2 = _full_adder(words[row + 3], words[row + 4], words[row + 5])
        ones, twos_3 = _full_adder(ones_1, ones_2, words[row + 6])
        twos, fours = _full_adder(twos_1, twos_2, twos_3)
        b0, carry = b0 ^ ones, b0 & ones
        b1, carry = _full_adder(b1, twos, carry)
        b2, carry = _full_adder(b2, fours, carry)
        b3, carry = b3 ^ carry, b3 & carry
        b4, carry = b4 ^ carry, b4 & carry
        b5, carry = b5 ^ carry, b5 & carry
        b6, carry = b6 ^ carry, b6 & carry
        b7, carry = b7 ^ carry, b7 & carry
        b8 ^= carry
        row += 7
    while row < len(words):
        carry = words[row]
        b0, carry = b0 ^ carry, b0 & carry
        b1, carry = b1 ^ carry, b1 & carry
        b2, carry = b2 ^ carry, b2 & carry
        b3, carry = b3 ^ carry, b3 & carry
        b4, carry = b4 ^ carry, b4 & carry
        b5, carry = b5 ^ carry, b5 & carry
        b6, carry = b6 ^ carry, b6 & carry
        b7, carry = b7 ^ carry, b7 & carry
        b8 ^= carry
        row += 1
    one = np.uint64(1)
    for i in range(WORD):
        place = np.uint64(i)
        sums[i] = (
            ((b0 >> place) & one)
            | (((b1 >> place) & one) << np.uint64(1))
            | (((b2 >> place) & one) << np.uint64(2))
            | (((b3 >> place) & one) << np.uint64(3))
            | (((b4 >> place) & one) << np.uint64(4))
            | (((b5 >> place) & one) << np.uint64(5))
            | (((b6 >> place) & one) << np.uint64(6))
            | (((b7 >> place) & one) << np.uint64(7))
            | (((b8 >> place) & one) << np.uint64(8))
        )


@compiled
def _count_short_run(
    ranks: NDArray[np.uint16],
    begin: int,
    end: int,
    table: NDArray[np.uint16],
    target: NDArray[np.uint16],
) -> None:
    top_k = len(ranks)
    j = 0
    while j + 4 <= top_k:
        first, second = ranks[j, begin:end], ranks[j + 1, begin:end]
        third, fourth = ranks[j + 2, begin:end], ranks[j + 3, begin:end]
        for row in range(len(first)):
            target[table[first[row]]] += np.uint16(1)
            target[table[second[row]]] += np.uint16(1)
            target[table[third[row]]] += np.uint16(1)
            target[table[fourth[row]]] += np.uint16(1)
        j += 4
    while j < top_k:
        for row in range(begin, end):
            target[table[ranks[j, row]]] += np.uint16(1)
        j += 1


@compiled
def _count_long_run(
    ranks: NDArray[np.uint16],
    begin: int,
    end: int,
    table: NDArray[np.uint16],
    even: NDArray[np.uint16],
    odd: NDArray[np.uint16],
    target: NDArray[np.uint16],
) -> None:
    """Count a run with two counters per rank, which are all zero before and after.

    A plane of sorted ranks often holds the same rank in neighbouring rows; incrementing one
    counter twice in a row would wait for the first increment to reach memory.
    """
    top_k = len(ranks)
    j = 0
    while j + 4 <= top_k:
        first, second = ranks[j, begin:end], ranks[j + 1, begin:end]
        third, fourth = ranks[j + 2, begin:end], ranks[j + 3, begin:end]
        rows = len(first)
        row = 0
        while row + 1 < rows:
            even[first[row]] += np.uint16(1)
            even[second[row]] += np.uint16(1)
            even[third[row]] += np.uint16(1)
            even[fourth[row]] += np.uint16(1)
            odd[first[row + 1]] += np.uint16(1)
            odd[second[row + 1]] += np.uint16(1)
            odd[third[row + 1]] += np.uint16(1)
            odd[fourth[row + 1]] += np.uint16(1)
            row += 2
        if row < rows:
            even[first[row]] += np.uint16(1)
            even[second[row]] += np.uint16(1)
            even[third[row]] += np.uint16(1)
            even[fourth[row]] += np.uint16(1)
        j += 4
    while j < top_k:
        for row in range(begin, end):
            even[ranks[j, row]] += np.uint16(1)
        j += 1
    for rank in range(len(table)):
        target[table[rank]] += even[rank] + odd[rank]
        even[rank] = 0
        odd[rank] = 0


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
