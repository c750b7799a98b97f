"""First pass: everything that depends on the order of rows, and nothing that needs counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.processors.compilation import compiled
from moescope.processors.kernels.records import (
    AGE,
    AGE_US,
    CONTEXT,
    COUNTABLE,
    FLAG_LAST_OF_REQUEST,
    FORGET_US,
    MINUTE_US,
    N_ACCEPTED,
    N_CELLS,
    N_CLOSED,
    N_IDENTICAL,
    N_LATE,
    N_OPS,
    N_ROW,
    N_STALE,
    N_TASKS,
    NO_PANE_BEFORE,
    NO_TIME,
    NONE,
    OP_ADD,
    PANE_US,
    PHASE_END,
    POSITION_BEYOND,
    SILENCE,
    SILENCE_US,
)
from moescope.processors.kernels.transitions import (
    close_all,
    close_complete,
    close_window,
    end_request,
    flush_task,
    forget,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from moescope.processors.kernels.records import Records

IDENTICAL_ROWS = 33
"""From this consecutive identical row on, rows are suspicious (warm-up, stuck buffers)."""

CELL_ROWS = 32_768
"""Longest cell: its counts are 16 bits wide."""

STALE_ROW = -2
"""In `cell_of_row`: left out because the request had come further already."""


@compiled
def plan(
    begin: int,
    request: NDArray[np.int32],
    position: NDArray[np.int32],
    row_tokens: NDArray[np.int32],
    phase: NDArray[np.uint8],
    status: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    identical: NDArray[np.bool_],
    first_time: NDArray[np.int64],
    last_time: NDArray[np.int64],
    step: NDArray[np.int64],
    slot_of_request: NDArray[np.int64],
    anchors: NDArray[np.int64],
    unanchored: NDArray[np.bool_],
    tasks: NDArray[np.int64],
    scenes: NDArray[np.int64],
    slots: Records,
    windows: Records,
    specs: Records,
    border: int,
    gap_limit: int,
    step_pane_size: int,
    offset: int,
    batch: int,
    cell_of_row: NDArray[np.int32],
    cells: Records,
    closed: Records,
    pieces: Records,
    ops: NDArray[np.int64],
    n: NDArray[np.int64],
) -> None:
    """Plan rows from `begin` until an output buffer is nearly full.

    Args:
        begin: First row.
        request, position, row_tokens, phase, status, flags: [T]; `row_tokens` is 1 for token
            rows and the piece's length in counts fidelity.
        identical: bool [T]; row equals the row before it at every layer.
        first_time, last_time: int64 [T]; `NO_TIME` when absent.
        step: int64 [T] or empty.
        slot_of_request, anchors, unanchored, tasks, scenes: per request of the batch; anchors
            and unanchored are [R, phases].
        slots, windows, specs: the lane's state.
        border: greatest common divisor of all sizes and strides: cells never cross it.
        gap_limit: panes of the longest time window.
        step_pane_size: steps of a step pane, 0 when there are no step windows.
        offset: the record's offset.
        batch: a number that no other batch of the lane has.
        cell_of_row: out, int32 [T]; −1 where a row is not counted, −2 where it is stale.
        cells, closed, pieces, ops: out buffers.
        n: out, int64 [COUNTERS]; `n[N_ROW]` is the row to go on with.
    """
    total = len(request)
    accumulators = windows.shape[1]
    closed_room = len(closed) - 2 * accumulators - 2
    pieces_room = len(pieces) - 3
    ops_room = len(ops) - 2 * accumulators - 8
    row = begin
    cell = -1
    cell_end = 0
    cell_late = 0
    deadline = NO_TIME
    while row < total:
        r = request[row]
        slot = slot_of_request[r]
        state = slots[slot]
        if status[row] != COUNTABLE:
            if status[row] == CONTEXT and flags[row] & FLAG_LAST_OF_REQUEST:
                if n[N_CLOSED] >= closed_room or n[N_TASKS] >= pieces_room or n[N_OPS] >= ops_room:
                    break
                if state["task_seen"] == 0:
                    state["task"] = tasks[r]
                    state["task_phase"] = phase[row]
                    state["task_gap"] = 0
                    state["task_first_time"] = first_time[row]
                    state["task_last_time"] = last_time[row]
                    state["task_minute"] = (
                        0 if first_time[row] == NO_TIME else first_time[row] // MINUTE_US
                    )
                end_request(
                    slots, windows, specs, slot, flags[row], closed, pieces, ops, n
                )  # fmt: skip
                cell = -1
            elif status[row] == CONTEXT:
                state["row"] = row
                state["batch"] = batch
            cell_of_row[row] = -1
            row += 1
            continue
        place = position[row]
        time = first_time[row]
        length = row_tokens[row]
        if (
            cell >= 0
            and request[row - 1] == r
            and cell_of_row[row - 1] == cell
            and length == 1
            and place == state["last_position"] + 1
            and place < cell_end
            and cells[cell]["seen"] < CELL_ROWS
            and phase[row] == state["phase"]
            and (time == NO_TIME or (time // PANE_US == cells[cell]["pane"] and time < deadline))
            and (step_pane_size == 0 or step[row] // step_pane_size == cells[cell]["step_pane"])
            and not identical[row]
            and not flags[row] & FLAG_LAST_OF_REQUEST
        ):
            # The common case: one more row of the cell at hand, in the middle of every window.
            state["last_position"] = place
            state["identical_run"] = 1
            state["contiguous"] += 1
            state["row"] = row
            out = cells[cell]
            out["seen"] += 1
            state["task_seen"] += 1
            if time != NO_TIME:
                state["last_time"] = max(state["last_time"], time)
                out["first_time"] = min(out["first_time"], time)
                out["last_time"] = max(out["last_time"], time)
                state["task_first_time"] = min(state["task_first_time"], time)
                state["task_last_time"] = max(state["task_last_time"], time)
            for accumulator in range(accumulators):
                window = windows[slot, accumulator]
                if window["open"] and ops[n[N_OPS] - 1, 3] & (1 << accumulator):
                    window["seen"] += 1
                    window["last_relative"] = place - window["anchor"]
                    if time != NO_TIME:
                        window["last_time"] = max(window["last_time"], time)
            cell_of_row[row] = cell
            n[N_ACCEPTED] += 1
            n[N_LATE] += cell_late
            border_reached = place + 1 >= cell_end
            row += 1
            if border_reached:
                if n[N_CLOSED] >= closed_room or n[N_OPS] >= ops_room:
                    # Cannot happen: room for two rows' closings is kept when a cell opens.
                    break
                close_complete(slots, windows, specs, slot, closed, ops, n)
                cell = -1
            continue
        if (
            n[N_CELLS] >= len(cells)
            or n[N_CLOSED] >= closed_room - accumulators
            or n[N_TASKS] >= pieces_room
            or n[N_OPS] >= ops_room - accumulators
        ):
            break
        cell = -1
        if (
            time != NO_TIME
            and state["last_time"] != NO_TIME
            and time - state["last_time"] >= FORGET_US
        ):
            close_all(slots, windows, specs, slot, SILENCE, closed, ops, n)
            if state["task_seen"] > 0:
                flush_task(slots, slot, 0, pieces, ops, n)
            forget(slots, windows, slot)
        if place <= state["last_position"]:
            n[N_STALE] += length
            cell_of_row[row] = STALE_ROW
            row += 1
            continue
        state["ended"] = 0
        now_phase = phase[row]
        new_phase = now_phase != state["phase"]
        if (
            time != NO_TIME
            and state["last_time"] != NO_TIME
            and time - state["last_time"] >= SILENCE_US
        ):
            close_all(slots, windows, specs, slot, SILENCE, closed, ops, n)
        if time != NO_TIME:
            for spec in range(len(specs)):
                base = specs[spec]["base"]
                for accumulator in range(base, base + specs[spec]["overlap"]):
                    window = windows[slot, accumulator]
                    if window["open"] and time - window["first_time"] >= AGE_US:
                        close_window(
                            slots, windows, specs, slot, spec, accumulator, AGE, closed, ops, n
                        )  # fmt: skip
        if new_phase:
            close_all(slots, windows, specs, slot, PHASE_END, closed, ops, n)
            for accumulator in range(accumulators):
                windows[slot, accumulator]["closed_early"] = NONE
            state["phase"] = now_phase
            state["last_pane"] = NO_TIME
            state["last_step_pane"] = NO_TIME
        anchor = anchors[r, now_phase]
        relative = place - anchor
        for spec in range(len(specs)):
            base = specs[spec]["base"]
            for accumulator in range(base, base + specs[spec]["overlap"]):
                window = windows[slot, accumulator]
                if window["open"]:
                    end = window["index"] * specs[spec]["stride"] + specs[spec]["size"]
                    if relative >= end or window["anchor"] != anchor:
                        close_window(
                            slots, windows, specs, slot, spec, accumulator,
                            POSITION_BEYOND, closed, ops, n,
                        )  # fmt: skip
        minute = 0 if time == NO_TIME else time // MINUTE_US
        if state["task_seen"] > 0 and (
            state["task"] != tasks[r]
            or state["scene"] != scenes[r]
            or state["task_phase"] != now_phase
            or state["task_minute"] != minute
        ):
            flush_task(slots, slot, 0, pieces, ops, n)
        follows = place == state["last_position"] + 1
        before_is_doubted = follows and state["identical_run"] >= IDENTICAL_ROWS
        if not follows:
            state["contiguous"] = 0
        if identical[row]:
            state["identical_run"] += length
            if state["identical_run"] >= IDENTICAL_ROWS:
                n[N_IDENTICAL] += 1
        else:
            state["identical_run"] = 1
        counted = not (identical[row] and state["identical_run"] >= IDENTICAL_ROWS)
        cell = n[N_CELLS]
        n[N_CELLS] += 1
        out = cells[cell]
        out["slot"] = slot
        out["request_row"] = r
        out["phase"] = now_phase
        out["row"] = row
        out["before"] = NONE
        if (
            state["batch"] == batch
            and position[state["row"]] == place - 1
            and not before_is_doubted
        ):
            out["before"] = state["row"]
        out["contiguous"] = state["contiguous"]
        state["contiguous"] = state["contiguous"] + 1 if counted else 0
        state["row"] = row
        state["batch"] = batch
        out["seen"] = length
        out["first_time"] = time
        out["last_time"] = last_time[row]
        out["gap"] = 0
        out["pane"] = NO_TIME
        if time != NO_TIME:
            pane = time // PANE_US
            out["pane"] = pane
            if state["last_pane"] == NO_TIME:
                out["gap"] = gap_limit
            elif pane > state["last_pane"]:
                out["gap"] = min(pane - state["last_pane"], gap_limit)
            state["last_pane"] = max(state["last_pane"], pane)
        out["step_pane"] = NO_TIME
        out["step_gap"] = 0
        if step_pane_size > 0:
            step_pane = step[row] // step_pane_size
            out["step_pane"] = step_pane
            if step_pane > state["last_step_pane"]:
                out["step_gap"] = NO_PANE_BEFORE
                if state["last_step_pane"] != NO_TIME:
                    out["step_gap"] = (step_pane - state["last_step_pane"]) * step_pane_size
                state["last_step_pane"] = step_pane
        state["scene"] = scenes[r]
        new_task = state["task"] != tasks[r]
        if state["task_seen"] == 0:
            state["task"] = tasks[r]
            state["task_phase"] = now_phase
            state["task_minute"] = minute
            state["task_gap"] = NO_PANE_BEFORE
            if not new_phase and not new_task and state["last_task_minute"] != NO_TIME:
                state["task_gap"] = max(0, minute - state["last_task_minute"])
                minute = max(minute, state["last_task_minute"])
            state["last_task_minute"] = minute
            state["task_first_time"] = time
            state["task_last_time"] = last_time[row]
            state["task_offset"] = offset
        state["task_seen"] += length
        if time != NO_TIME:
            state["task_first_time"] = min(state["task_first_time"], time)
            state["task_last_time"] = max(state["task_last_time"], last_time[row])
        mask = 0
        cell_late = 0
        if unanchored[r, now_phase]:
            cell_end = 2**31
        elif relative < 0:
            cell_end = anchor
        else:
            for spec in range(len(specs)):
                stride = specs[spec]["stride"]
                late = 0
                newest = relative // stride
                oldest = max(0, (relative - specs[spec]["size"]) // stride + 1)
                for index in range(oldest, newest + 1):
                    accumulator = specs[spec]["base"] + index % specs[spec]["overlap"]
                    window = windows[slot, accumulator]
                    if index <= window["closed_early"]:
                        late = 1
                        continue
                    if not window["open"]:
                        window["open"] = 1
                        window["index"] = index
                        window["anchor"] = anchor
                        window["first_time"] = time
                        window["last_time"] = last_time[row]
                        window["seen"] = 0
                        window["offset"] = offset
                    window["seen"] += length
                    window["last_relative"] = relative + length - 1
                    if time != NO_TIME:
                        window["last_time"] = max(window["last_time"], last_time[row])
                    mask |= 1 << accumulator
                cell_late += late
            n[N_LATE] += cell_late * length
            cell_end = anchor + (relative // border + 1) * border
        ops[n[N_OPS], 0] = OP_ADD
        ops[n[N_OPS], 1] = cell
        ops[n[N_OPS], 2] = slot
        ops[n[N_OPS], 3] = mask
        n[N_OPS] += 1
        deadline = 2**63 - 1
        for accumulator in range(accumulators):
            window = windows[slot, accumulator]
            if window["open"] and window["first_time"] != NO_TIME:
                deadline = min(deadline, window["first_time"] + AGE_US)
        state["last_position"] = place + length - 1
        state["last_offset"] = offset
        if time != NO_TIME:
            state["last_time"] = max(state["last_time"], last_time[row])
        cell_of_row[row] = cell if counted else -1
        n[N_ACCEPTED] += length
        if state["last_position"] + 1 >= cell_end:
            close_complete(slots, windows, specs, slot, closed, ops, n)
            cell = -1
        if not counted:
            cell = -1
        if flags[row] & FLAG_LAST_OF_REQUEST:
            end_request(
                slots, windows, specs, slot, flags[row], closed, pieces, ops, n
            )  # fmt: skip
            cell = -1
        row += 1
    n[N_ROW] = row
