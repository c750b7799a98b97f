"""Steps of planning: closing windows, handing out task pieces, forgetting requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.processors.compilation import compiled
from moescope.processors.kernels.records import (
    AGE,
    AGE_US,
    COMPLETE,
    FLAG_LAST_OF_TASK,
    N_CLOSED,
    N_OPS,
    N_TASKS,
    NO_TIME,
    NONE,
    OP_CLOSE,
    OP_TASK,
    POSITION_BEYOND,
    REQUEST_END,
    SILENCE,
    SILENCE_US,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from moescope.processors.kernels.records import Records


@compiled
def close_window(
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
    """Describe a closed window in `closed`, and have its counts copied out."""
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
                close_window(slots, windows, specs, slot, spec, accumulator, reason, closed, ops, n)


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
    state["contiguous"] = 0
    state["ended"] = 0
    state["task_seen"] = 0
    state["last_task_minute"] = NO_TIME
    for accumulator in range(windows.shape[1]):
        windows[slot, accumulator]["open"] = 0
        windows[slot, accumulator]["closed_early"] = NONE


@compiled
def end_request(
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
    """Close all that a request has open, hand out its task piece, and forget it."""
    close_all(slots, windows, specs, slot, REQUEST_END, closed, ops, n)
    last_of_task = 1 if flags & FLAG_LAST_OF_TASK else 0
    if slots[slot]["task_seen"] > 0 or last_of_task:
        flush_task(slots, slot, last_of_task, pieces, ops, n)
    forget(slots, windows, slot)
    # Forgotten by time, a request's rows still make pairs: a context row would bring it back.
    slots[slot]["batch"] = NONE
    slots[slot]["ended"] = 1


@compiled
def close_complete(
    slots: Records,
    windows: Records,
    specs: Records,
    slot: int,
    closed: Records,
    ops: NDArray[np.int64],
    n: NDArray[np.int64],
) -> None:
    """Close the windows whose last position was just counted."""
    for spec in range(len(specs)):
        base = specs[spec]["base"]
        for accumulator in range(base, base + specs[spec]["overlap"]):
            window = windows[slot, accumulator]
            if window["open"]:
                end = window["index"] * specs[spec]["stride"] + specs[spec]["size"]
                if window["last_relative"] == end - 1:
                    close_window(
                        slots, windows, specs, slot, spec, accumulator, COMPLETE, closed, ops, n
                    )  # fmt: skip
