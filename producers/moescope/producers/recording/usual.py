"""The usual call, recorded with as little work as possible.

An engine makes the same two calls all day: a decode step (one row each of several requests) and a
prompt (many rows of one request), as NumPy arrays and with one phase. Such calls are recognised
and written here. Whatever else a call is, or might be, leaves it to the general way of
`Recorder.record`, with the same result in the ring and in the counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

import numpy as np

from moescope.core.vocabulary import Phase
from moescope.producers.recording.call import (
    INTEGERS,
    LARGEST_POSITION,
    LATEST_TIME_US,
    largest,
)
from moescope.producers.recording.running import NEVER_COUNTED_PHASES
from moescope.producers.ring.layout import FRAME_BYTES, FrameKind, aligned
from moescope.producers.ring.rows import (
    SMALL_IDS,
    RowShape,
    column_mask,
    place_columns,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from numpy.typing import NDArray

    from moescope.producers.recording.running import ResolvedRequests, RunningRequests
    from moescope.producers.ring.writer import RingWriter

_PHASES: Final[dict[object, int]] = {
    key: int(phase)
    for phase in Phase
    if phase not in NEVER_COUNTED_PHASES
    for key in (phase.name.lower(), int(phase))
}
_PHASE_TYPES: Final = frozenset({str, int, Phase})
_ROWS: Final = FrameKind.ROWS
_ONE: Final = (1).to_bytes(4, "little")
_LARGEST_PASS: Final = 2**63 - 1
_LAYOUTS_KEPT: Final = 512

_MASKS: Final = {
    (has_pass, has_tokens): column_mask(
        dict.fromkeys(
            ("position", "phase", "flags", "expert_ids")
            + ("pass_id",) * has_pass
            + ("token_id",) * has_tokens
        )
    )
    for has_pass in (False, True)
    for has_tokens in (False, True)
}


class _Layout(NamedTuple):
    """A frame's columns after its runs: where they start, and the bytes of those that vary least.

    Attributes:
        phase_and_flags: Both columns as bytes, no row flagged.
    """

    mask: int
    size: int
    position: int
    phase: int
    phase_and_flags: bytes
    pass_id: int
    token_id: int
    expert_ids: int


class UsualCalls:
    """Recognises and writes usual calls.

    Args:
        ring: Where to.
        running: The recorder's requests.
        shape: What the rows have in common.
        lock: Guards ring and requests.
    """

    def __init__(
        self,
        ring: RingWriter,
        running: RunningRequests,
        shape: RowShape,
        lock: threading.Lock,
    ) -> None:
        self._ring = ring
        self._running = running
        self._shape = shape
        self._lock = lock
        self._row_shape = (shape.layers, shape.top_k)
        self._row_ids = shape.layers * shape.top_k
        self._id_bytes = 1 if shape.experts <= SMALL_IDS else 2
        self._longest_body = ring.geometry.max_frame_bytes - FRAME_BYTES
        # Views of the whole ring: to make one of each column takes longer than to fill it.
        self._as_int32 = np.frombuffer(ring.buffer, np.int32)
        self._as_int64 = np.frombuffer(ring.buffer, np.int64)
        self._as_ids = np.frombuffer(ring.buffer, np.uint8 if self._id_bytes == 1 else np.uint16)
        self._layouts: dict[tuple[int, int, int], _Layout] = {}
        self._runs_of: ResolvedRequests | None = None
        self._single_row_runs = b""

    def record(
        self,
        names: object,
        positions: object,
        expert_ids: object,
        phase: object,
        *,
        event_time_us: object,
        pass_id: object,
        token_ids: object,
        now_us: Callable[[], int],
    ) -> bool:
        """Record a call whose other arguments are all None.

        Args:
            names: What `Recorder.record` calls `request_ids`; the others are named alike.
            positions: Like there.
            expert_ids: Like there.
            phase: Like there.
            event_time_us: Like there.
            pass_id: Like there.
            token_ids: Like there.
            now_us: The time of rows that come without one; called with the lock.

        Returns:
            False if the call is not usual, or the ring is busy: then nothing has happened.
        """
        if not (
            type(expert_ids) is np.ndarray
            and expert_ids.shape[1:] == self._row_shape
            and expert_ids.dtype.kind in INTEGERS
            and (rows := len(expert_ids))
            and _are_integers(positions, rows)
            and type(phase) in _PHASE_TYPES
            and phase in _PHASES
            and (event_time_us is None or _is_from_0_to(event_time_us, LATEST_TIME_US))
            and (pass_id is None or _is_from_0_to(pass_id, _LARGEST_PASS))
            and (token_ids is None or _are_integers(token_ids, rows))
        ):
            return False
        if type(names) is list and len(names) == rows:
            lowest = highest = positions.tolist()
        elif type(names) is str and _rises(positions):
            names = [names]
            lowest, highest = [int(positions[0])], [int(positions[-1])]
        else:
            return False
        if max(highest) > LARGEST_POSITION or largest(expert_ids) >= self._shape.experts:
            return False
        if not self._lock.acquire(False):  # noqa: FBT003 - a keyword takes twice as long
            return False
        try:
            return self._write(
                names, lowest, highest, phase=_PHASES[phase], time_us=event_time_us, now_us=now_us,
                positions=positions, expert_ids=expert_ids, pass_id=pass_id, token_ids=token_ids,
            )  # fmt: skip
        finally:
            self._lock.release()

    def _write(
        self,
        names: list[Any],
        lowest: list[int],
        highest: list[int],
        *,
        phase: int,
        time_us: int | None,
        now_us: Callable[[], int],
        **columns: Any,  # noqa: ANN401 - arrays, numbers and None
    ) -> bool:
        """Write a call's rows, unless something is unusual about its requests."""
        resolved = self._resolve(names)
        if resolved is None:
            return False
        rows = len(columns["positions"])
        layout = self._layout(
            _MASKS[columns["pass_id"] is not None, columns["token_ids"] is not None], rows, phase
        )
        runs = self._runs(resolved, rows)
        columns_at = aligned(len(runs))
        body = columns_at + layout.size
        if body > self._longest_body or not self._running.advance_latest(lowest, highest):
            return False
        ring = self._ring
        ring.enter()
        try:
            if time_us is None:
                time_us = now_us()
            at = ring.reserve(body)
            ring.buffer[at : at + len(runs)] = runs
            self._write_columns(layout, at + columns_at, rows, **columns)
            ring.publish(
                _ROWS, body, rows=rows, runs=len(names), columns=layout.mask,
                runs_bytes=len(runs), first_us=time_us, last_us=time_us,
            )  # fmt: skip
        finally:
            ring.leave()
        return True

    def _write_columns(
        self,
        layout: _Layout,
        at: int,
        rows: int,
        *,
        positions: NDArray[Any],
        expert_ids: NDArray[Any],
        pass_id: int | None,
        token_ids: NDArray[Any] | None,
    ) -> None:
        constant = layout.phase_and_flags
        start = at + layout.phase
        self._ring.buffer[start : start + len(constant)] = constant
        start = (at + layout.position) // 4
        self._as_int32[start : start + rows] = positions
        if pass_id is not None:
            start = (at + layout.pass_id) // 8
            self._as_int64[start : start + rows] = pass_id
        if token_ids is not None:
            start = (at + layout.token_id) // 8
            self._as_int64[start : start + rows] = token_ids  # unsigned ones keep their bits
        start = (at + layout.expert_ids) // self._id_bytes
        ids = self._as_ids[start : start + rows * self._row_ids]
        ids.reshape(expert_ids.shape)[...] = expert_ids

    def _resolve(self, names: list[Any]) -> ResolvedRequests | None:
        resolved = self._running.latest(names)
        if resolved is None:
            if set(map(type, names)) != {str}:
                return None
            resolved = self._running.resolve([*names])
        return resolved if resolved.are_usual else None

    def _runs(self, resolved: ResolvedRequests, rows: int) -> bytes:
        """What a frame says about its runs of rows."""
        if len(resolved.requests) != rows:
            return rows.to_bytes(4, "little") + resolved.packed
        if resolved is not self._runs_of:
            self._single_row_runs = _ONE * rows + resolved.packed
            self._runs_of = resolved
        return self._single_row_runs

    def _layout(self, mask: int, rows: int, phase: int) -> _Layout:
        key = (mask, rows, phase)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= _LAYOUTS_KEPT:
                self._layouts.clear()
            layout = self._layouts[key] = _lay_out(self._shape, mask, rows, phase)
        return layout


def _is_from_0_to(value: object, highest: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= highest


def _rises(positions: NDArray[Any]) -> bool:
    """Whether each position is above the one before, and all are positions."""
    if int(positions[0]) < 0 or int(positions[-1]) > LARGEST_POSITION:
        return False
    return bool(np.logical_and.reduce(positions[1:] > positions[:-1]))


def _are_integers(array: object, rows: int) -> TypeGuard[NDArray[Any]]:
    return type(array) is np.ndarray and array.shape == (rows,) and array.dtype.kind in INTEGERS


def _lay_out(shape: RowShape, mask: int, rows: int, phase: int) -> _Layout:
    placement = place_columns(shape, mask, rows)
    at = {column.name: column.offset for column in placement.columns}
    phases = bytes([phase]) * rows
    gap = bytes(at["flags"] - at["phase"] - rows)
    return _Layout(
        mask, placement.size, at["position"], at["phase"], phases + gap + bytes(rows),
        at.get("pass_id", -1), at.get("token_id", -1), at["expert_ids"],
    )  # fmt: skip
