"""The usual call, recorded with as little work as possible.

An engine makes the same calls all day: a decode step (one row each of several requests), a prompt
(many rows of one request), or both in one pass (a run of rows for each request), as NumPy arrays.
Such calls are recognised and written here. Whatever else a call is, or might be, leaves it to the
general way of `Recorder.record`, with the same result in the ring and in the counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from moescope.core.vocabulary import Phase
from moescope.producers.recording.call import (
    INTEGERS,
    LARGEST_POSITION,
    LARGEST_STEP,
    LATEST_TIME_US,
    largest,
    types_that_name,
)
from moescope.producers.recording.running import NEVER_COUNTED_PHASES
from moescope.producers.recording.usual_frames import PHASE_PER_ROW, UsualFrames, UsualRows

if TYPE_CHECKING:
    import threading

    from numpy.typing import NDArray

    from moescope.producers.recording.counters import RowBooks
    from moescope.producers.recording.event_times import EventTimes
    from moescope.producers.recording.running import ResolvedRequests, RunningRequests
    from moescope.producers.recording.sampling import Sampling
    from moescope.producers.ring.rows import RowShape
    from moescope.producers.ring.writer import RingWriter

_PHASES: Final[dict[object, int]] = {
    key: int(phase)
    for phase in Phase
    if phase not in NEVER_COUNTED_PHASES
    for key in (phase.name.lower(), int(phase))
}
_PHASE_TYPES: Final = frozenset({str, int, Phase})
_LAST_COUNTED_PHASE: Final = min(NEVER_COUNTED_PHASES) - 1
_FLOATS: Final = "f"
_BOOLEANS: Final = "b"
_ONE: Final = (1).to_bytes(4, "little")
_LARGEST_PASS: Final = 2**63 - 1
_COUNTS_OF: Final = frozenset({int})


class UsualCalls:
    """Recognises and writes usual calls.

    Args:
        ring: Where to.
        running: The recorder's requests.
        sampling: Which of them are recorded.
        shape: What the rows have in common.
        books: Counts the rows that sampling leaves out.
        times: Of rows that come without one.
        lock: Guards ring and requests.
    """

    def __init__(
        self,
        ring: RingWriter,
        running: RunningRequests,
        *,
        sampling: Sampling,
        shape: RowShape,
        books: RowBooks,
        times: EventTimes,
        lock: threading.Lock,
    ) -> None:
        self._frames = UsualFrames(ring, shape)
        self._running = running
        self._sampling = sampling
        self._books = books
        self._times = times
        self._lock = lock
        self._experts = shape.experts
        self._id_types = types_that_name(shape.experts)
        self._row_shape = (shape.layers, shape.top_k)
        self._runs_of: ResolvedRequests | None = None
        self._single_row_runs = b""
        self._is_open = True

    def close(self) -> None:
        """Write nothing any more; with the lock."""
        self._is_open = False

    def record(
        self,
        names: object,
        positions: object,
        expert_ids: object,
        phase: object,
        *,
        rows_per_request: object,
        event_time_us: object,
        pass_id: object,
        step: object,
        token_ids: object,
        content_keys: object,
        weights: object,
        entropy: object,
        margin: object,
        dropped: object,
    ) -> bool:
        """Record a call whose other arguments are all None.

        Args:
            names: What `Recorder.record` calls `request_ids`; the others are named alike.
            positions: Like there, and so on.
            expert_ids: …
            phase: …
            rows_per_request: …
            event_time_us: …
            pass_id: …
            step: …
            token_ids: …
            content_keys: …
            weights: …
            entropy: …
            margin: …
            dropped: …

        Returns:
            False if the call is not usual, or the ring is busy or closed: then nothing has
            happened.
        """
        if not (
            type(expert_ids) is np.ndarray
            and expert_ids.shape[1:] == self._row_shape
            and expert_ids.dtype.char in self._id_types
            and (count := len(expert_ids))
            and _has(positions, (count,), INTEGERS)
            and (event_time_us is None or _is_from_0_to(event_time_us, LATEST_TIME_US))
            and (
                pass_id is None
                or _is_from_0_to(pass_id, _LARGEST_PASS)
                or (_has(pass_id, (count,), INTEGERS) and largest(pass_id) <= _LARGEST_PASS)
            )
            and (step is None or _is_from_0_to(step, LARGEST_STEP))
            and (token_ids is None or _has(token_ids, (count,), INTEGERS))
            and (content_keys is None or _has(content_keys, (count,), INTEGERS))
            and (weights is None or _has(weights, expert_ids.shape, _FLOATS))
            and (entropy is None or _has(entropy, expert_ids.shape[:2], _FLOATS))
            and (margin is None or _has(margin, expert_ids.shape[:2], _FLOATS))
            and (dropped is None or _has(dropped, expert_ids.shape, _BOOLEANS))
            and largest(expert_ids) < self._experts
        ):
            return False
        phases: NDArray[Any] | None = None
        if type(phase) in _PHASE_TYPES:
            if phase not in _PHASES:
                return False
            all_phases = _PHASES[phase]
        elif _has(phase, (count,), INTEGERS) and largest(phase) <= _LAST_COUNTED_PHASE:
            phases, all_phases = phase, PHASE_PER_ROW
        else:
            return False
        rows = UsualRows(
            positions, expert_ids, phases, pass_id, step, token_ids, content_keys, weights,
            entropy, margin, dropped,
        )  # fmt: skip
        runs = _runs(names, rows_per_request, count)
        if runs is None:
            return False
        if self._sampling.takes_all:
            return self._record(*runs, rows, all_phases, event_time_us)
        return self._record_some(*runs, rows, all_phases, event_time_us)

    def _record_some(
        self,
        names: list[Any],
        counts: list[int] | None,
        rows: UsualRows,
        phase: int,
        time_us: int | None,
    ) -> bool:
        """Record the rows of those requests that sampling takes."""
        picked = self._sampling.pick(names)
        if len(picked.names) == len(names):
            return self._record(names, counts, rows, phase, time_us)
        if largest(rows.position) > LARGEST_POSITION:
            return False
        places = picked.places
        if counts is not None:
            places = np.flatnonzero(np.repeat(picked.takes, counts))
            counts = [counts[place] for place in picked.places.tolist()]
            if len(counts) == len(places):
                counts = None
        if picked.names and not self._record(
            picked.names, counts, rows.take(places), phase, time_us
        ):
            return False
        self._books.unsampled.add(len(rows.position) - len(places))
        return True

    def _record(
        self,
        names: list[Any],
        counts: list[int] | None,
        rows: UsualRows,
        phase: int,
        time_us: int | None,
    ) -> bool:
        ends = _ends_of_runs(rows.position, counts)
        if ends is None:
            return False
        lowest, highest = ends
        if max(highest) > LARGEST_POSITION:
            return False
        if not self._lock.acquire(False):  # noqa: FBT003 - a keyword takes twice as long
            return False
        try:
            resolved = self._resolve(names) if self._is_open else None
            if resolved is None:
                return False
            runs = self._packed_runs(resolved, counts)
            layout = self._frames.prepare(rows.mask(), len(rows.position), phase, len(runs))
            if layout is None or not self._running.advance_latest(lowest, highest):
                return False
            self._frames.write(
                layout, rows, runs=runs, count=len(names), time_us=time_us,
                now_us=self._times.now_us,
            )  # fmt: skip
            return True
        finally:
            self._lock.release()

    def _resolve(self, names: list[Any]) -> ResolvedRequests | None:
        resolved = self._running.latest(names)
        if resolved is None:
            if set(map(type, names)) != {str}:
                return None
            resolved = self._running.resolve([*names])
        return resolved if resolved.are_usual else None

    def _packed_runs(self, resolved: ResolvedRequests, counts: list[int] | None) -> bytes:
        """What a frame says about its runs of rows."""
        if counts is not None:
            return np.array(counts, "<u4").tobytes() + resolved.packed
        if resolved is not self._runs_of:
            self._single_row_runs = _ONE * len(resolved.requests) + resolved.packed
            self._runs_of = resolved
        return self._single_row_runs


def _runs(
    names: object, rows_per_request: object, rows: int
) -> tuple[list[Any], list[int] | None] | None:
    """Names and the rows of each, which are None where each has one; None if not usual."""
    if type(names) is str:
        return ([names], None if rows == 1 else [rows]) if rows_per_request is None else None
    if type(names) is not list or not names:
        return None
    if rows_per_request is None:
        return (names, None) if len(names) == rows else None
    counts: list[int]
    if _has(rows_per_request, (len(names),), INTEGERS):
        counts = rows_per_request.tolist()
    elif type(rows_per_request) is list and set(map(type, rows_per_request)) == _COUNTS_OF:
        counts = rows_per_request
    else:
        return None
    if len(counts) != len(names) or min(counts) < 1 or sum(counts) != rows:
        return None
    return names, None if len(names) == rows else counts


def _ends_of_runs(
    position: NDArray[Any], counts: list[int] | None
) -> tuple[list[int], list[int]] | None:
    """First and last position of each run; None unless positions rise within each."""
    if counts is None:
        positions = position.tolist()
        return positions, positions
    rises = position[1:] > position[:-1]
    if len(counts) == 1:
        if not np.logical_and.reduce(rises):
            return None
        return [int(position[0])], [int(position[-1])]
    ends = np.array(counts).cumsum()
    rises[ends[:-1] - 1] = True
    if not np.logical_and.reduce(rises):
        return None
    lasts = position[ends - 1].tolist()
    return position[ends - counts].tolist(), lasts


def _is_from_0_to(value: object, highest: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= highest


def _has(array: object, shape: tuple[int, ...], kinds: str) -> TypeGuard[NDArray[Any]]:
    return type(array) is np.ndarray and array.shape == shape and array.dtype.kind in kinds
