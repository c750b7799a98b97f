"""First pass: everything that depends on the order of rows, and nothing that needs counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.processors.compilation import compiled
from moescope.processors.kernels.records import (
    AGE,
    AGE_US,
    COMPLETE,
    CONTEXT,
    COUNTABLE,
    FLAG_LAST_OF_REQUEST,
    FLAG_LAST_OF_TASK,
    FORGET_US,
    MINUTE_US,
    NO_PANE_BEFORE,
    NO_TIME,
    NONE,
    OP_ADD,
    OP_CLOSE,
    OP_TASK,
    PANE_US,
    PHASE_END,
    POSITION_BEYOND,
    REQUEST_END,
    SILENCE,
    SILENCE_US,
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

N_ROW, N_CELLS, N_CLOSED, N_TASKS, N_OPS, N_STALE, N_LATE, N_ACCEPTED, N_IDENTICAL = range(9)
COUNTERS = 9


@compiled
def _close(
    slots: Records,
    windows: Records,
    specs: Records,
    slot: int,
    spec: int,
    accumulator: int,
    reason: int,
    closed: Records,
    ops: NDArray[np.int64],
    n: NDArray[np.int64],
) -> None:
    window = windows[slot, accumulator]
    if reason == SILENCE and window["first_time"] + AGE_US < slots[slot]["last_time"] + SILENCE_US:
        # Both are due: the earlier one would have closed it at a watermark in between.
        reason = AGE
    out = closed[n[N_CLOSED]]
    start = window["index"] * specs[spec]["stride"]
    out["slot"] = slot
    out["spec"] = spec
    out["phase"] = slots[slot]["phase"]
    out["scene"] = slots[slot]["scene"]
    out["task"] = slots[slot]["task"]
    out["request_hash"] = slots[slot]["request_hash"]
    out["start"] = window["anchor"] + start
    out["first_time"] = window["first_time"]
    out["last_time"] = window["last_time"]
    out["seen"] = window["seen"]
    out["reason"] = reason
    if reason in (COMPLETE, POSITION_BEYOND):
        out["expected"] = specs[spec]["size"]
    else:
        out["expected"] = window["last_relative"] - start + 1
    if window["last_time"] == NO_TIME:
        out["close_time"] = NO_TIME
    elif reason == SILENCE:
        # The request's last row: a window's own last row may be older where windows overlap.
        out["close_time"] = slots[slot]["last_time"] + SILENCE_US
    elif reason == AGE:
        out["close_time"] = window["first_time"] + AGE_US
    else:
        out["close_time"] = window["last_time"]
    if reason in (SILENCE, AGE):
        window["closed_early"] = max(window["closed_early"], window["index"])
    window["open"] = 0
    ops[n[N_OPS], 0] = OP_CLOSE
    ops[n[N_OPS], 1] = n[N_CLOSED]
    ops[n[N_OPS], 2] = slot
    ops[n[N_OPS], 3] = accumulator
    n[N_OPS] += 1
    n[N_CLOSED] += 1


@compiled
def close_all(
    slots: Records,
    windows: Records,
    specs: Records,
    slot: int,
    reason: int,
    closed: Records,
    ops: NDArray[np.int64],
    n: NDArray[np.int64],
) -> None:
    """Close every open window of a request."""
    for spec in range(len(specs)):
        base = specs[spec]["base"]
        for accumulator in range(base, base + specs[spec]["overlap"]):
            if windows[slot, accumulator]["open"]:
                _close(slots, windows, specs, slot, spec, accumulator, reason, closed, ops, n)


@compiled
def flush_task(
    slots: Records,
    slot: int,
    last_of_task: int,
    pieces: Records,
    ops: NDArray[np.int64],
    n: NDArray[np.int64],
) -> None:
    """Hand out what a request has added to its task since the last piece."""
    state = slots[slot]
    piece = pieces[n[N_TASKS]]
    piece["task"] = state["task"]
    piece["scene"] = state["scene"]
    piece["phase"] = state["task_phase"]
    piece["minute"] = state["task_minute"]
    piece["seen"] = state["task_seen"]
    piece["gap"] = state["task_gap"]
    piece["first_time"] = state["task_first_time"]
    piece["last_time"] = state["task_last_time"]
    piece["last_of_task"] = last_of_task
    state["task_seen"] = 0
    ops[n[N_OPS], 0] = OP_TASK
    ops[n[N_OPS], 1] = n[N_TASKS]
    ops[n[N_OPS], 2] = slot
    ops[n[N_OPS], 3] = 0
    n[N_OPS] += 1
    n[N_TASKS] += 1


@compiled
def forget(slots: Records, windows: Records, slot: int) -> None:
    """Return a slot to the state of a request that was never seen."""
    state = slots[slot]
    state["last_position"] = NONE
    state["last_time"] = NO_TIME
    state["last_offset"] = NONE
    state["last_pane"] = NO_TIME
    state["last_step_pane"] = NO_TIME
    state["phase"] = NONE
    state["identical_run"] = 0
    state["ended"] = 0
    state["task_seen"] = 0
    state["last_task_minute"] = NO_TIME
    for accumulator in range(windows.shape[1]):
        windows[slot, accumulator]["open"] = 0
        windows[slot, accumulator]["closed_early"] = NONE


@compiled
def _end_request(
    slots: Records,
    windows: Records,
    specs: Records,
    slot: int,
    flags: int,
    closed: Records,
    pieces: Records,
    ops: NDArray[np.int64],
    n: NDArray[np.int64],
) -> None:
    close_all(slots, windows, specs, slot, REQUEST_END, closed, ops, n)
    last_of_task = 1 if flags & FLAG_LAST_OF_TASK else 0
    if slots[slot]["task_seen"] > 0 or last_of_task:
        flush_task(slots, slot, last_of_task, pieces, ops, n)
    forget(slots, windows, slot)
    slots[slot]["ended"] = 1


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
                _end_request(
                    slots, windows, specs, slot, flags[row], closed, pieces, ops, n
                )  # fmt: skip
                cell = -1
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
                _close_complete(slots, windows, specs, slot, closed, ops, n)
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
                        _close(
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
                        _close(
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
            _close_complete(slots, windows, specs, slot, closed, ops, n)
            cell = -1
        if not counted:
            cell = -1
        if flags[row] & FLAG_LAST_OF_REQUEST:
            _end_request(
                slots, windows, specs, slot, flags[row], closed, pieces, ops, n
            )  # fmt: skip
            cell = -1
        row += 1
    n[N_ROW] = row


@compiled
def _close_complete(
    slots: Records,
    windows: Records,
    specs: Records,
    slot: int,
    closed: Records,
    ops: NDArray[np.int64],
    n: NDArray[np.int64],
) -> None:
    for spec in range(len(specs)):
        base = specs[spec]["base"]
        for accumulator in range(base, base + specs[spec]["overlap"]):
            window = windows[slot, accumulator]
            if window["open"]:
                end = window["index"] * specs[spec]["stride"] + specs[spec]["size"]
                if window["last_relative"] == end - 1:
                    _close(
                        slots, windows, specs, slot, spec, accumulator, COMPLETE, closed, ops, n
                    )  # fmt: skip


__all__ = [
    "COUNTERS",
    "N_ACCEPTED",
    "N_CELLS",
    "N_CLOSED",
    "N_IDENTICAL",
    "N_LATE",
    "N_OPS",
    "N_ROW",
    "N_STALE",
    "N_TASKS",
    "STALE_ROW",
    "close_all",
    "flush_task",
    "forget",
    "plan",
]
