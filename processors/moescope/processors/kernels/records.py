"""Record layouts that the kernels share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Records = NDArray[np.void]

SLOT = np.dtype(
    [
        ("last_position", "i8"),
        ("last_time", "i8"),
        ("last_offset", "i8"),
        ("last_pane", "i8"),
        ("last_step_pane", "i8"),
        ("phase", "i8"),
        ("scene", "i8"),
        ("identical_run", "i8"),
        ("contiguous", "i8"),
        ("batch", "i8"),
        ("row", "i8"),
        ("ended", "i8"),
        ("live", "i8"),
        ("request_hash", "u8"),
        ("similarity_hash", "u8"),
        ("ring", "i8"),
        ("task", "i8"),
        ("task_minute", "i8"),
        ("task_phase", "i8"),
        ("task_seen", "i8"),
        ("task_gap", "i8"),
        ("last_task_minute", "i8"),
        ("task_first_time", "i8"),
        ("task_last_time", "i8"),
        ("task_offset", "i8"),
    ]
)
"""One remembered request of a lane. `last_offset` is the record of its last accepted row;
`contiguous` counts its last accepted rows at consecutive positions; `row` is its last accepted or
context row in the batch whose number is `batch`."""

WINDOW = np.dtype(
    [
        ("open", "i8"),
        ("index", "i8"),
        ("anchor", "i8"),
        ("first_time", "i8"),
        ("last_time", "i8"),
        ("last_relative", "i8"),
        ("seen", "i8"),
        ("offset", "i8"),
        ("closed_early", "i8"),
    ]
)
"""One token window in the making, [slots, accumulators]; `closed_early` is the highest window
index that closed by silence or age and must not open again (−1: none)."""

SPEC = np.dtype([("size", "i8"), ("stride", "i8"), ("base", "i8"), ("overlap", "i8")])
"""A declared token window: its accumulators are `base … base + overlap − 1`."""

CELL = np.dtype(
    [
        ("slot", "i8"),
        ("request_row", "i8"),
        ("phase", "i8"),
        ("pane", "i8"),
        ("gap", "i8"),
        ("step_pane", "i8"),
        ("step_gap", "i8"),
        ("seen", "i8"),
        ("first_time", "i8"),
        ("last_time", "i8"),
        ("row", "i8"),
        ("before", "i8"),
        ("contiguous", "i8"),
    ]
)
"""`seen` rows of a batch from `row` on. `before` is the row of the batch that the first one makes a
pair with (−1: none), `contiguous` the number of accepted rows just before it."""

NO_PANE_BEFORE = 2**62
"""A gap in panes, steps or minutes: none was before."""

CLOSED = np.dtype(
    [
        ("slot", "i8"),
        ("spec", "i8"),
        ("phase", "i8"),
        ("scene", "i8"),
        ("task", "i8"),
        ("request_hash", "u8"),
        ("start", "i8"),
        ("first_time", "i8"),
        ("last_time", "i8"),
        ("close_time", "i8"),
        ("seen", "i8"),
        ("expected", "i8"),
        ("reason", "i8"),
    ]
)

TASK_PIECE = np.dtype(
    [
        ("task", "i8"),
        ("scene", "i8"),
        ("phase", "i8"),
        ("minute", "i8"),
        ("seen", "i8"),
        ("gap", "i8"),
        ("first_time", "i8"),
        ("last_time", "i8"),
        ("last_of_task", "i8"),
    ]
)

OP_ADD = 0
OP_CLOSE = 1
OP_TASK = 2

REASONS = (
    "complete",
    "position_beyond",
    "phase_end",
    "request_end",
    "silence",
    "age",
    "sealed",
)
COMPLETE, POSITION_BEYOND, PHASE_END, REQUEST_END, SILENCE, AGE, SEALED = range(len(REASONS))

NO_TIME = -(2**63)
NONE = -1
SILENCE_US = 30_000_000
AGE_US = 120_000_000
FORGET_US = 600_000_000
MINUTE_US = 60_000_000
PANE_US = 1_000_000

COUNTABLE, SKIPPED, CONTEXT = 0, 1, 2
"""Row status that `plan` reads: counted, left out, left out but may carry the request's end."""

FLAG_LAST_OF_REQUEST = 8
FLAG_LAST_OF_TASK = 16

N_ROW, N_CELLS, N_CLOSED, N_TASKS, N_OPS, N_STALE, N_LATE, N_ACCEPTED, N_IDENTICAL = range(9)
COUNTERS = 9
"""Places in the array of counters that a kernel fills; `N_ROW` is the row to go on with."""
