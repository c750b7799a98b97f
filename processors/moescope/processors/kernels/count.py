"""Second pass: gap planes to counts per cell and layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.processors.compilation import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 256
"""Rows whose ranks are worked out together: k x 256 values stay in the first-level cache."""

LONG_RUN = 16
"""From here on it pays to count ranks first, and to look their experts up once per run."""


@compiled
def count_rows(
    gaps: NDArray[np.unsignedinteger[Any]],
    relabelling: NDArray[np.uint16],
    skipped_layers: NDArray[np.bool_],
    begin: int,
    end: int,
    cell_of_row: NDArray[np.int32],
    counts: NDArray[np.uint16],
) -> int:
    """Count the expert ids of rows `begin … end` into their cells.

    Args:
        gaps: uint8 or uint16 [k, L, T].
        relabelling: uint16 [L, E], popularity rank to expert.
        skipped_layers: bool [L]; layers that a gate has taken out for this batch.
        begin, end: rows.
        cell_of_row: int32 [T]; −1 is skipped.
        counts: out, uint16 [cells, L, E]; added to.

    Returns:
        Number of suspicious (row, layer) pairs: fewer than k distinct ids, or an id ≥ E. They
        are not counted.
    """
    top_k, layers, _ = gaps.shape
    experts = relabelling.shape[1]
    # 16 bits are enough: a valid batch has no rank above MAX_EXPERTS.
    ranks = np.empty((top_k, BLOCK), np.uint16)
    bad = np.empty(BLOCK, np.uint8)
    even = np.zeros(experts, np.uint16)
    odd = np.zeros(experts, np.uint16)
    suspicious = 0
    for layer in range(layers):
        table = relabelling[layer]
        for block in range(begin, end, BLOCK):
            width = min(BLOCK, end - block)
            any_bad = _ranks_of_block(gaps, layer, block, width, experts, ranks, bad)
            if skipped_layers[layer]:
                bad[:width] = 1
                any_bad = True
            cells = cell_of_row[block : block + width]
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
                elif i - run >= LONG_RUN:
                    _count_long_run(ranks, run, i, table, even, odd, target)
                else:
                    _count_short_run(ranks, run, i, table, target)
    return suspicious


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
def _ranks_of_block(
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
