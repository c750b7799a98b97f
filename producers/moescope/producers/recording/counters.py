"""What a recorder counts: rows that were recorded, and rows that were not, and why."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from moescope.core.printable import printable

if TYPE_CHECKING:
    import logging
    import threading

    from moescope.producers.ring.writer import RingWriter

_REASONS_SAID: Final = 32
_LONGEST_REASON: Final = 500


@dataclass(frozen=True, slots=True)
class RecorderCounters:
    """What a recorder did so far, in rows (tokens) unless said otherwise.

    Attributes:
        recorded_rows: Written to the ring.
        rejected_rows: Refused: wrong shape or type, ids or positions out of range; and one for
            each call of `miss` that tells no number of rows.
        unseen_rows: Computed by the engine and not recorded: told by `miss`, without a turn at
            the ring within 50 ms, while the kill switch was on, while the budget left no time for
            any row, or after the ring was deleted.
        unsampled_rows: Left out by sampling.
        recomputed_rows: Recorded with the flag `RECOMPUTED`.
        running_requests: Requests that are remembered.
        internal_errors: Errors of the recorder itself.
        disabled: Why nothing is recorded at the moment, or empty.
    """

    recorded_rows: int
    rejected_rows: int
    unseen_rows: int
    unsampled_rows: int
    recomputed_rows: int
    running_requests: int
    internal_errors: int
    disabled: str


class _Unbooked(NamedTuple):
    rejected: int
    unseen: int
    reason: str


class RowBooks:
    """Rows that were not recorded; they reach the ring's header whenever its lock is free.

    Args:
        lock: Guards the ring.

    Attributes:
        ring: Where they are booked.
        unsampled_rows: Left out by sampling.
        recomputed_rows: Recorded again.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._unbooked: deque[_Unbooked] = deque()
        self.ring: RingWriter | None = None
        self.unsampled_rows = 0
        self.recomputed_rows = 0

    @property
    def rejected_rows(self) -> int:
        """Refused so far, booked or not."""
        booked = self.ring.rejected if self.ring else 0
        return booked + sum(each.rejected for each in tuple(self._unbooked))

    @property
    def unseen_rows(self) -> int:
        """Unseen so far, booked or not."""
        booked = self.ring.unseen if self.ring else 0
        return booked + sum(each.unseen for each in tuple(self._unbooked))

    def add(self, *, rejected: int = 0, unseen: int = 0, reason: str = "") -> None:
        """Count rows, unseen ones with the reason; without the lock."""
        self._unbooked.append(_Unbooked(rejected, unseen, reason))
        self.try_to_book()

    def try_to_book(self) -> None:
        """Tell the ring, unless it is busy; without the lock."""
        if self._unbooked and self._lock.acquire(blocking=False):
            try:
                self.book()
            finally:
                self._lock.release()

    def book(self, rejected: int = 0) -> None:
        """Tell the ring; with the lock."""
        while self._unbooked:
            more = self._unbooked.popleft()
            rejected += more.rejected
            if more.unseen and self.ring is not None:
                self.ring.miss(more.unseen, more.reason)
        if rejected and self.ring is not None:
            self.ring.reject(rejected)


class Complaints:
    """Says each reason once, so that a fault in every pass does not fill the engine's log."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: set[str] = set()

    def say_once(self, reason: str) -> None:
        """Say it, unless it was said before or too many were."""
        reason = printable(reason[:_LONGEST_REASON])
        if reason not in self._said and len(self._said) < _REASONS_SAID:
            self._said.add(reason)
            self._log.warning("Not recorded (said once, then only counted): %s", reason)
