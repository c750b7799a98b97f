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
    suspicious = 0
    for layer in range(layers):
        table = relabelling[layer]
        for block in range(begin, end, BLOCK):
            width = min(BLOCK, end - block)
            any_bad = _ranks_of_block(gaps, layer, block, width, experts, ranks, bad)
            if skipped_layers[layer]:
                bad[:width] = 1
                any_bad = True
            i = 0
            while i < width:
                cell = cell_of_row[block + i]
                run = i
                i += 1
                while i < width and cell_of_row[block + i] == cell:
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
                    # Plane by plane: consecutive increments rarely meet the same expert.
                    for j in range(top_k):
                        plane = ranks[j]
                        for row in range(run, i):
                            target[table[plane[row]]] += np.uint16(1)
                else:
                    for row in range(run, i):
                        for j in range(top_k):
                            target[table[ranks[j, row]]] += np.uint16(1)
    return suspicious


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
    top_k = gaps.shape[0]
    first = gaps[0, layer]
    for i in range(width):
        ranks[0, i] = first[block + i]
        bad[i] = 0
    for j in range(1, top_k):
        plane = gaps[j, layer]
        for i in range(width):
            gap = plane[block + i]
            ranks[j, i] = ranks[j - 1, i] + np.uint16(gap)
            bad[i] |= np.uint8(gap == 0)
    any_bad = np.uint8(0)
    for i in range(width):
        bad[i] |= np.uint8(ranks[top_k - 1, i] >= experts)
        any_bad |= bad[i]
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
