"""One frame of usual rows, written with a store for each column and no array made twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from moescope.producers.ring.layout import FRAME_BYTES, FrameKind, aligned
from moescope.producers.ring.rows import SMALL_IDS, RowShape, column_mask, place_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from moescope.producers.ring.writer import RingWriter

PHASE_PER_ROW: Final = -1
"""In place of the one phase of all rows."""

_ROWS: Final = FrameKind.ROWS
_LAYOUTS_KEPT: Final = 512
_BASE: Final = column_mask(dict.fromkeys(("position", "phase", "flags", "expert_ids")))
_BITS: Final = {
    name: column_mask({name: None})
    for name in (
        "pass_id", "step", "token_id", "content_key", "weights", "entropy", "margin", "dropped",
    )
}  # fmt: skip
_PASS_ID: Final = _BITS["pass_id"]
_STEP: Final = _BITS["step"]
_TOKEN_ID: Final = _BITS["token_id"]
_CONTENT_KEY: Final = _BITS["content_key"]
_WEIGHTS: Final = _BITS["weights"]
_ENTROPY: Final = _BITS["entropy"]
_MARGIN: Final = _BITS["margin"]
_DROPPED: Final = _BITS["dropped"]


class UsualRows(NamedTuple):
    """The columns of a usual call: arrays of T rows, or numbers that hold for all of them.

    Attributes:
        phase: uint8 [T] where each row has its own.
    """

    position: NDArray[Any]
    expert_ids: NDArray[Any]
    phase: NDArray[Any] | None
    pass_id: int | NDArray[Any] | None
    step: int | None
    token_id: NDArray[Any] | None
    content_key: NDArray[Any] | None
    weights: NDArray[Any] | None
    entropy: NDArray[Any] | None
    margin: NDArray[Any] | None
    dropped: NDArray[Any] | None

    def mask(self) -> int:
        """Which columns a frame of these rows has."""
        mask = _BASE
        if self.pass_id is not None:
            mask |= _PASS_ID
        if self.step is not None:
            mask |= _STEP
        if self.token_id is not None:
            mask |= _TOKEN_ID
        if self.content_key is not None:
            mask |= _CONTENT_KEY
        if self.weights is not None:
            mask |= _WEIGHTS
        if self.entropy is not None:
            mask |= _ENTROPY
        if self.margin is not None:
            mask |= _MARGIN
        if self.dropped is not None:
            mask |= _DROPPED
        return mask

    def take(self, places: NDArray[np.intp]) -> UsualRows:
        """Some of the rows."""
        values: list[Any] = [
            value.take(places, 0) if isinstance(value, np.ndarray) else value for value in self
        ]
        return UsualRows(*values)


class _Layout(NamedTuple):
    """A frame's columns after its runs: where they start, and the bytes of those that vary least.

    Attributes:
        constant: Phases, where all are the same, and flags, where no row is flagged.
        constant_at: Where these bytes go.
    """

    mask: int
    size: int
    constant: bytes
    constant_at: int
    position: int
    phase: int
    expert_ids: int
    pass_id: int
    step: int
    token_id: int
    content_key: int
    weights: int
    entropy: int
    margin: int
    dropped: int


class UsualFrames:
    """Writes frames of usual rows.

    Args:
        ring: Where to.
        shape: What the rows have in common.
    """

    def __init__(self, ring: RingWriter, shape: RowShape) -> None:
        self._ring = ring
        self._shape = shape
        self._row_ids = shape.layers * shape.top_k
        self._id_bytes = 1 if shape.experts <= SMALL_IDS else 2
        self._longest_body = ring.geometry.max_frame_bytes - FRAME_BYTES
        # Views of the whole ring: to make one of each column takes longer than to fill it.
        self._as_uint8 = np.frombuffer(ring.buffer, np.uint8)
        self._as_int32 = np.frombuffer(ring.buffer, np.int32)
        self._as_int64 = np.frombuffer(ring.buffer, np.int64)
        self._as_float32 = np.frombuffer(ring.buffer, np.float32)
        self._as_ids = self._as_uint8 if self._id_bytes == 1 else self._as_int64.view(np.uint16)
        self._layouts: dict[tuple[int, int, int], _Layout] = {}

    def prepare(self, mask: int, rows: int, phase: int, runs_bytes: int) -> _Layout | None:
        """How a frame will lie; None if it would be too long.

        Args:
            mask: Of its columns.
            rows: Their number.
            phase: Of all rows, or `PHASE_PER_ROW`.
            runs_bytes: Length of what it says about its runs.
        """
        key = (mask, rows, phase)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= _LAYOUTS_KEPT:
                self._layouts.clear()
            layout = self._layouts[key] = _lay_out(self._shape, mask, rows, phase)
        return layout if aligned(runs_bytes) + layout.size <= self._longest_body else None

    def write(
        self,
        layout: _Layout,
        rows: UsualRows,
        *,
        runs: bytes,
        count: int,
        time_us: int | None,
        now_us: Callable[[], int],
    ) -> None:
        """Write and publish a frame; with the ring's lock.

        Args:
            layout: As `prepare` said.
            rows: The columns.
            runs: Packed runs.
            count: Number of runs.
            time_us: Event time; by default now.
            now_us: Tells now.
        """
        ring = self._ring
        ring.enter()
        try:
            if time_us is None:
                time_us = now_us()
            columns_at = aligned(len(runs))
            body = columns_at + layout.size
            at = ring.reserve(body)
            ring.buffer[at : at + len(runs)] = runs
            self._store(layout, at + columns_at, rows)
            ring.publish(
                _ROWS, body, rows=len(rows.position), runs=count, columns=layout.mask,
                runs_bytes=len(runs), first_us=time_us, last_us=time_us,
            )  # fmt: skip
        finally:
            ring.leave()

    def _store(self, layout: _Layout, at: int, rows: UsualRows) -> None:
        position, expert_ids, phase = rows[:3]
        count = len(position)
        constant = layout.constant
        start = at + layout.constant_at
        self._ring.buffer[start : start + len(constant)] = constant
        if phase is not None:
            start = at + layout.phase
            self._as_uint8[start : start + count] = phase
        start = (at + layout.position) // 4
        self._as_int32[start : start + count] = position
        start = (at + layout.expert_ids) // self._id_bytes
        ids = self._as_ids[start : start + count * self._row_ids]
        ids.reshape(expert_ids.shape)[...] = expert_ids
        if layout.mask != _BASE:
            self._store_optional(layout, at, rows)

    def _store_optional(self, layout: _Layout, at: int, rows: UsualRows) -> None:
        pass_id, step, token_id, content_key, weights, entropy, margin, dropped = rows[3:]
        count = len(rows.position)
        for value, offset in (
            (pass_id, layout.pass_id),
            (step, layout.step),
            (token_id, layout.token_id),  # unsigned ones keep their bits
            (content_key, layout.content_key),
        ):
            if value is not None:
                start = (at + offset) // 8
                self._as_int64[start : start + count] = value
        for array, offset in (
            (weights, layout.weights),
            (entropy, layout.entropy),
            (margin, layout.margin),
        ):
            if array is not None:
                start = (at + offset) // 4
                stored = self._as_float32[start : start + array.size]
                stored.reshape(array.shape)[...] = array
        if dropped is not None:
            start = at + layout.dropped
            self._as_uint8[start : start + dropped.size].reshape(dropped.shape)[...] = dropped


def _lay_out(shape: RowShape, mask: int, rows: int, phase: int) -> _Layout:
    placement = place_columns(shape, mask, rows)
    at = {column.name: column.offset for column in placement.columns}
    flags = bytes(rows)
    constant, constant_at = flags, at["flags"]
    if phase != PHASE_PER_ROW:
        gap = bytes(at["flags"] - at["phase"] - rows)
        constant, constant_at = bytes([phase]) * rows + gap + flags, at["phase"]
    return _Layout(
        mask, placement.size, constant, constant_at, at["position"], at["phase"],
        at["expert_ids"], *(at.get(name, -1) for name in _BITS),
    )  # fmt: skip
