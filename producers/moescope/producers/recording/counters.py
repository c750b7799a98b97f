"""What a recorder counts: rows that were recorded, and rows that were not, and why."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from moescope.core.printable import printable

if TYPE_CHECKING:
    import logging
    import threading

    from moescope.producers.ring.writer import RingWriter

_REASONS_SAID: Final = 32
_LONGEST_REASON: Final = 500
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class RecorderCounters:
    """What a recorder did so far, in rows (tokens) unless said otherwise.

    Each row that it was given, or told of, is in one of the first four or in `disabled_rows`.

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
        disabled_rows: Given to `record` or told by `miss` when the recorder was off for good: after
            `close`, in a forked child, or with `MOESCOPE_DISABLE`. `disabled` says which. They are
            in no batch: there is no ring to tell them to.
    """

    recorded_rows: int
    rejected_rows: int
    unseen_rows: int
    unsampled_rows: int
    recomputed_rows: int
    running_requests: int
    internal_errors: int
    disabled: str
    disabled_rows: int


class ThreadTotals(Generic[_Number]):
    """A number that any thread adds to without a lock, of which a fork may copy a held one.

    Args:
        zero: What it starts with.
    """

    def __init__(self, zero: _Number) -> None:
        self._zero: _Number = zero
        self._of_thread: dict[int, _Number] = {}

    def add(self, number: _Number) -> None:
        """Add to the part of the calling thread."""
        thread = get_ident()
        self._of_thread[thread] = self._of_thread.get(thread, self._zero) + number

    @property
    def total(self) -> _Number:
        """All parts."""
        total = self._zero
        parts: list[_Number] = list(self._of_thread.values())
        for part in parts:
            total += part
        return total


class _Unbooked(NamedTuple):
    rejected: int
    unseen: int
    reason: str


class RowBooks:
    """Rows that were not recorded; they reach the ring's header whenever its lock is free.

    Args:
        lock: Guards the ring.

    Attributes:
        unsampled: Rows that sampling left out.
        recomputed: Rows that were recorded again.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._unbooked: deque[_Unbooked] = deque()
        self._disabled = ThreadTotals(0)
        self._ring: RingWriter | None = None
        self._is_open = False
        self.unsampled = ThreadTotals(0)
        self.recomputed = ThreadTotals(0)

    def open(self, ring: RingWriter) -> None:
        """Book in this ring from now on."""
        self._ring = ring
        self._is_open = True

    def close(self) -> None:
        """Book what waits, and nothing in the ring any more; with the lock."""
        self.book()
        self._is_open = False

    def leave(self) -> None:
        """Book nothing in the ring any more, which is another process's; without the lock."""
        self._is_open = False

    @property
    def rejected_rows(self) -> int:
        """Refused so far, booked or not."""
        booked = self._ring.rejected if self._ring else 0
        return booked + sum(each.rejected for each in tuple(self._unbooked))

    @property
    def unseen_rows(self) -> int:
        """Unseen so far, booked or not."""
        booked = self._ring.unseen if self._ring else 0
        return booked + sum(each.unseen for each in tuple(self._unbooked))

    @property
    def disabled_rows(self) -> int:
        """Counted here alone, as there was no ring (any more)."""
        return self._disabled.total

    def add(self, *, rejected: int = 0, unseen: int = 0, reason: str = "") -> None:
        """Count rows, unseen ones with the reason; without the lock."""
        if not self._is_open:
            self._disabled.add(rejected + unseen)
            return
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
            if not self._is_open:  # counted by a thread that the closing overtook
                self._disabled.add(more.rejected + more.unseen)
                continue
            rejected += more.rejected
            if more.unseen and self._ring is not None:
                self._ring.miss(more.unseen, more.reason)
        if rejected and self._ring is not None:
            self._ring.reject(rejected)


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
