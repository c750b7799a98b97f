"""Which records of a partition are on their way, and up to where all of them have arrived."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Sent(NamedTuple):
    """A record that is on its way.

    Attributes:
        size: Payload bytes.
        at: Seconds of the monotonic clock when it was sent.
    """

    size: int
    at: float


class SendWindow:
    """Records between the first that is not acknowledged and the last that was sent.

    Records are sent in offset order and acknowledged in any. What was acknowledged out of order
    is remembered when sending begins again before it, so that no record is counted twice.

    Attributes:
        bytes: Payload bytes on their way.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._in_order: deque[int] = deque()
        self._on_their_way: dict[int, Sent] = {}
        self._settled: set[int] = set()

    def __len__(self) -> int:
        """How many records are on their way."""
        return len(self._on_their_way)

    def send(self, offset: int, size: int, now: float) -> None:
        """A record goes out; offsets rise from call to call, up to `rewind`."""
        self._in_order.append(offset)
        self._on_their_way[offset] = Sent(size, now)
        self.bytes += size

    def is_settled(self, offset: int) -> bool:
        """Whether a record has arrived already, or never will, and need not be sent again."""
        return offset in self._settled

    def pass_by(self, offset: int) -> None:
        """A settled record is left out where it would have been sent."""
        self._in_order.append(offset)

    def settle(self, offset: int, *, again_from: int) -> tuple[Sent | None, bool]:
        """A record has arrived, or was given up for good.

        Args:
            offset: Its place.
            again_from: Where the partition begins to be unsettled: older records are old news.

        Returns:
            How it was sent, None if it is not on its way (any more); and whether this is news.
        """
        sent = self._on_their_way.pop(offset, None)
        if sent is not None:
            self.bytes -= sent.size
        is_news = offset >= again_from and offset not in self._settled
        if is_news:
            self._settled.add(offset)
        return sent, is_news

    def first_unsettled(self, next_to_send: int) -> int:
        """Everything below is settled.

        Args:
            next_to_send: The record that follows what was sent.
        """
        while self._in_order and self._in_order[0] not in self._on_their_way:
            self._settled.discard(self._in_order.popleft())
        return self._in_order[0] if self._in_order else next_to_send

    def oldest_sent_at(self) -> float | None:
        """When the first record on its way was sent; None when there is none."""
        self.first_unsettled(0)
        return self._on_their_way[self._in_order[0]].at if self._in_order else None

    def remove(self, offset_from: int, offset_to: int) -> int:
        """Records are gone from the log; gives how many of them had not been settled."""
        settled = {offset for offset in self._settled if offset_from <= offset < offset_to}
        self._settled -= settled
        return offset_to - offset_from - len(settled)

    def rewind(self) -> None:
        """Nothing is on its way any more: sending begins again at the first unsettled record."""
        self.first_unsettled(0)
        self._in_order.clear()
        self._on_their_way.clear()
        self.bytes = 0
