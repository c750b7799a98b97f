"""Third pass: cells into open windows, panes and tasks; closed windows out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.processors.compilation import compiled
from moescope.processors.kernels.records import OP_ADD, OP_CLOSE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from moescope.processors.kernels.records import Records

    Counts = NDArray[np.unsignedinteger[Any]]
    Sums = NDArray[np.int64]


@compiled
def apply_ops(
    ops: NDArray[np.int64],
    n_ops: int,
    cell_counts: Counts,
    cell_dropped: Counts,
    cell_router: Sums,
    window_counts: Counts,
    window_dropped: Counts,
    window_router: Sums,
    task_counts: Counts,
    task_dropped: Counts,
    task_router: Sums,
    closed_counts: Counts,
    closed_dropped: Counts,
    closed_router: Sums,
    piece_counts: Counts,
    piece_dropped: Counts,
    piece_router: Sums,
    with_tasks: bool,  # noqa: FBT001 (a compiled function takes no keywords)
) -> None:
    """Carry out the plan, in its order.

    Args:
        ops: int64 [., 4] as `plan` wrote them. n_ops: how many.
        cell_counts: [cells, L·E]; cell_dropped: [cells, L]; cell_router: int64 [cells, R], with
            R = L · ROUTER_SUMS, or 0 where nothing is known beside the counts.
        window_counts: uint16 [slots, accumulators, L·E]; window_dropped: [.., L]; window_router:
            [.., R].
        task_counts: uint32 [slots, L·E]; task_dropped: [.., L]; task_router: [.., R].
        closed_counts, piece_counts: out, [., L·E]; closed_dropped, piece_dropped: [., L];
            closed_router, piece_router: [., R].
        with_tasks: whether task windows are formed.
    """
    width = cell_counts.shape[1]
    layers = cell_dropped.shape[1]
    sums = cell_router.shape[1]
    accumulators = window_counts.shape[1]
    for op in range(n_ops):
        kind = ops[op, 0]
        index = ops[op, 1]
        slot = ops[op, 2]
        if kind == OP_ADD:
            source = cell_counts[index]
            mask = ops[op, 3]
            for accumulator in range(accumulators):
                if mask & (1 << accumulator):
                    target = window_counts[slot, accumulator]
                    for i in range(width):
                        target[i] += source[i]
                    for i in range(layers):
                        window_dropped[slot, accumulator, i] += cell_dropped[index, i]
                    for i in range(sums):
                        window_router[slot, accumulator, i] += cell_router[index, i]
            if with_tasks:
                task = task_counts[slot]
                for i in range(width):
                    task[i] += source[i]
                for i in range(layers):
                    task_dropped[slot, i] += cell_dropped[index, i]
                for i in range(sums):
                    task_router[slot, i] += cell_router[index, i]
        elif kind == OP_CLOSE:
            accumulator = ops[op, 3]
            window = window_counts[slot, accumulator]
            out = closed_counts[index]
            for i in range(width):
                out[i] = window[i]
                window[i] = 0
            for i in range(layers):
                closed_dropped[index, i] = window_dropped[slot, accumulator, i]
                window_dropped[slot, accumulator, i] = 0
            for i in range(sums):
                closed_router[index, i] = window_router[slot, accumulator, i]
                window_router[slot, accumulator, i] = 0
        elif with_tasks:
            task = task_counts[slot]
            out = piece_counts[index]
            for i in range(width):
                out[i] = task[i]
                task[i] = 0
            for i in range(layers):
                piece_dropped[index, i] = task_dropped[slot, i]
                task_dropped[slot, i] = 0
            for i in range(sums):
                piece_router[index, i] = task_router[slot, i]
                task_router[slot, i] = 0


@compiled
def add_cells(
    cells: Records,
    n_cells: int,
    row_of_cell: NDArray[np.int64],
    gap_of_cell: NDArray[np.int64],
    cell_counts: Counts,
    cell_dropped: Counts,
    cell_router: Sums,
    pane_counts: Counts,
    pane_dropped: Counts,
    pane_router: Sums,
    pane_seen: NDArray[np.int64],
    pane_first: NDArray[np.int64],
    pane_last: NDArray[np.int64],
    pane_gaps: NDArray[np.int64],
) -> None:
    """Add cells to the panes (time or step) that `row_of_cell` names; −1 is skipped.

    `pane_gaps` [panes, G] takes each (request, phase)'s first row in a pane by `gap_of_cell`, its
    distance to the previous pane (0: not its first row; the last entry: that or more).
    """
    width = cell_counts.shape[1]
    layers = cell_dropped.shape[1]
    sums = cell_router.shape[1]
    for cell in range(n_cells):
        row = row_of_cell[cell]
        if row < 0:
            continue
        source = cell_counts[cell]
        target = pane_counts[row]
        for i in range(width):
            target[i] += source[i]
        for i in range(layers):
            pane_dropped[row, i] += cell_dropped[cell, i]
        for i in range(sums):
            pane_router[row, i] += cell_router[cell, i]
        pane_seen[row] += cells[cell]["seen"]
        pane_first[row] = min(pane_first[row], cells[cell]["first_time"])
        pane_last[row] = max(pane_last[row], cells[cell]["last_time"])
        gap = min(gap_of_cell[cell], pane_gaps.shape[1])
        if gap > 0:
            pane_gaps[row, gap - 1] += 1
