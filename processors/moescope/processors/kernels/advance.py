"""Closing by watermark, between records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.processors.compilation import compiled
from moescope.processors.kernels.records import AGE, AGE_US, NO_TIME, SEALED, SILENCE, SILENCE_US
from moescope.processors.kernels.transitions import close_all, close_window, flush_task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from moescope.processors.kernels.records import Records


@compiled
def close_due(
    due: NDArray[np.int64],
    watermark: int,
    slots: Records,
    windows: Records,
    specs: Records,
    closed: Records,
    ops: NDArray[np.int64],
    n: NDArray[np.int64],
) -> None:
    """Close what the watermark has overtaken in these slots: silence first, then age."""
    for slot in due:
        last_time = slots[slot]["last_time"]
        if last_time == NO_TIME:
            continue
        if last_time + SILENCE_US <= watermark:
            close_all(slots, windows, specs, slot, SILENCE, closed, ops, n)
            continue
        for spec in range(len(specs)):
            base = specs[spec]["base"]
            for accumulator in range(base, base + specs[spec]["overlap"]):
                window = windows[slot, accumulator]
                if window["open"] and window["first_time"] + AGE_US <= watermark:
                    close_window(
                        slots, windows, specs, slot, spec, accumulator, AGE, closed, ops, n
                    )


@compiled
def seal_slots(
    live: NDArray[np.int64],
    slots: Records,
    windows: Records,
    specs: Records,
    closed: Records,
    pieces: Records,
    ops: NDArray[np.int64],
    n: NDArray[np.int64],
) -> None:
    """Close everything: nothing follows."""
    for slot in live:
        close_all(slots, windows, specs, slot, SEALED, closed, ops, n)
        if slots[slot]["task_seen"] > 0:
            flush_task(slots, slot, 0, pieces, ops, n)


@compiled
def flush_tasks(
    due: NDArray[np.int64],
    slots: Records,
    pieces: Records,
    ops: NDArray[np.int64],
    n: NDArray[np.int64],
) -> None:
    """Hand out the task pieces of these slots."""
    for slot in due:
        flush_task(slots, slot, 0, pieces, ops, n)
