"""Runs: rows of a block, one below the other, of one cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.processors.compilation import compiled
from moescope.processors.kernels.ranks import BLOCK
from moescope.processors.kernels.records import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.processors.kernels.records import Records

RUN = np.dtype(
    [("cell", "i8"), ("begin", "i8"), ("end", "i8"), ("pairs_begin", "i8"), ("before", "i8")]
)
"""Rows `begin … end` of a block. From `pairs_begin` on, each makes a pair with the row above;
`before` is the row of the batch that the first one makes a pair with when that is not the row
above (−1: none)."""


@compiled
def end_of_block(cell_of_row: NDArray[np.int32], block: int, most: int, end: int) -> int:
    """Where a block of at most `most` rows ends: at a border of cells, if there is a late one."""
    last = block + most
    if last >= end:
        return end
    for border in range(last, block + most // 2, -1):
        if cell_of_row[border] != cell_of_row[border - 1]:
            return border
    return last


@compiled
def find_runs(
    cell_of_row: NDArray[np.int32],
    before_cell: NDArray[np.int64],
    begin: int,
    block: int,
    block_end: int,
    lead: int,
    runs: Records,
) -> int:
    """Find the runs of rows `block … block_end` of a batch.

    Args:
        cell_of_row: int32 [T].
        before_cell: int64 [cells], see `count_rows`; empty: pairs are not asked for.
        begin: row from which on the batch is looked at.
        block, block_end: rows.
        lead: rows just before them that belong to the block without being counted.
        runs: out, records [BLOCK].

    Returns:
        How many there are.
    """
    found = 0
    row = block
    while row < block_end:
        first = row
        cell = cell_of_row[row]
        row += 1
        while row < block_end and cell_of_row[row] == cell:
            row += 1
        if cell < 0:
            continue
        run = runs[found]
        found += 1
        run["cell"] = cell
        run["begin"] = first - block + lead
        run["end"] = row - block + lead
        run["pairs_begin"] = run["begin"] + 1
        run["before"] = NONE
        if len(before_cell) == 0:
            continue
        before = before_cell[cell]
        if first > begin and cell_of_row[first - 1] == cell:
            before = first - 1
        if before >= 0 and before == first - 1 and run["begin"] > 0:
            run["pairs_begin"] = run["begin"]
        else:
            run["before"] = before
    return found


MOST_ROWS = BLOCK - 1
"""Rows of a block that are counted: one more may lead."""
