"""Calls of `Recorder.record`: the short way for usual ones, and the general way for any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from moescope.producers.recording.call import check_call, rows_given
from moescope.producers.recording.changing import LOCK_TIMEOUT_SECONDS
from moescope.producers.recording.general import GeneralCalls
from moescope.producers.recording.usual import UsualCalls

if TYPE_CHECKING:
    import threading

    from moescope.producers.recording.call import RecordCall
    from moescope.producers.recording.counters import Complaints, RowBooks
    from moescope.producers.recording.event_times import EventTimes
    from moescope.producers.recording.running import RunningRequests
    from moescope.producers.recording.sampling import Sampling
    from moescope.producers.ring.layout import Geometry
    from moescope.producers.ring.rows import RowShape
    from moescope.producers.ring.writer import RingWriter

BUSY_REASON: Final = "the ring was busy"


class Calls:
    """Writes calls into a ring.

    Args:
        running: The recorder's requests.
        sampling: Which of them are recorded.
        shape: What the rows have in common.
        geometry: Of the ring.
        books: Counts rows that are not recorded.
        times: Of rows that come without one.
        complaints: Says why rows are left out.
        lock: Guards ring and requests.

    Attributes:
        usual: The short way; None before there is a ring, and when it is closed.
    """

    def __init__(
        self,
        *,
        running: RunningRequests,
        sampling: Sampling,
        shape: RowShape,
        geometry: Geometry,
        books: RowBooks,
        times: EventTimes,
        complaints: Complaints,
        lock: threading.Lock,
    ) -> None:
        self._running = running
        self._sampling = sampling
        self._shape = shape
        self._books = books
        self._times = times
        self._complaints = complaints
        self._lock = lock
        self._ring: RingWriter | None = None
        self.usual: UsualCalls | None = None
        self._general = GeneralCalls(
            running=running,
            sampling=sampling,
            shape=shape,
            geometry=geometry,
            books=books,
            times=times,
            complaints=complaints,
        )

    def open(self, ring: RingWriter) -> None:
        """Write into a ring from now on."""
        self._ring = ring
        self.usual = UsualCalls(
            ring,
            self._running,
            sampling=self._sampling,
            shape=self._shape,
            books=self._books,
            times=self._times,
            lock=self._lock,
        )

    def close(self) -> None:
        """Let go of the ring; with the lock."""
        if self.usual is not None:
            self.usual.close()
        self._ring = self.usual = None

    def record_any(
        self,
        request_ids: object,
        positions: object,
        expert_ids: object,
        phase: object,
        **more: object,
    ) -> None:
        """Record a call that is not usual, or count its rows as rejected.

        Args:
            request_ids: As in `Recorder.record`.
            positions: As there.
            expert_ids: As there.
            phase: As there.
            **more: The others that `check_call` takes.

        Raises:
            PartlyWrittenError: An error of the recorder's own, after a part of the rows.
        """
        try:
            call = check_call(self._shape, request_ids, positions, expert_ids, phase, **more)
        except Exception as error:  # noqa: BLE001 - whatever an engine passes
            self.reject(rows_given(positions, expert_ids), str(error))
            return
        if not call.rows:
            return
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_SECONDS):
            self._books.add(unseen=_tokens(call), reason=BUSY_REASON)
            self._complaints.say_once(f"unseen rows: {BUSY_REASON}")
            return
        try:
            if self._ring is None:  # it was closed since the call began
                self._books.add(unseen=_tokens(call))
            else:
                self._general.write(self._ring, call)
        finally:
            self._lock.release()

    def reject(self, rows: int, reason: str) -> None:
        """Count rows as rejected."""
        if rows:
            self._books.add(rejected=rows)
            self._complaints.say_once(f"record: {reason}")


def _tokens(call: RecordCall) -> int:
    """Rows of a call that are no padding."""
    padding = 0 if call.padding is None else int(np.count_nonzero(call.padding))
    return call.rows - padding
