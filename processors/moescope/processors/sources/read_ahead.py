"""Records of one partition of a topic that were fetched and not handed out yet."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from moescope.processors.sources.protocol import Poll, SourceGap, SourceRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIRMED_SECONDS = 5.0
"""An end that was asked for longer ago says nothing about now."""
REWOUND_LOOKS = 3
"""A new leader may know less for a moment than the one before has told."""
SERVED_SECONDS = 120.0
"""A partition whose end nobody tells for so long is not waited for."""


class ReadAhead:
    """What is known of a partition's place and end, and what was fetched of it.

    Attributes:
        handed_to: Offset from which the next records are asked for; None before the first time.
        fetched_to: Offset from which the next records are fetched.
        held_bytes: Of what is held.
        end: Where the partition ended when somebody asked; None: nobody knows.
        appended_us: When the record that was handed out last was appended; None: there was none.
    """

    def __init__(self, now: float) -> None:
        self._items: deque[SourceRecord | SourceGap] = deque()
        self._asked_at = now
        self._confirmed = False
        self._short_looks = 0
        self.handed_to: int | None = None
        self.fetched_to = 0
        self.held_bytes = 0
        self.end: int | None = None
        self.appended_us: int | None = None

    def __len__(self) -> int:
        """Number of records and gaps held."""
        return len(self._items)

    @property
    def is_read(self) -> bool:
        """Whether everything up to the known end was handed out."""
        return (
            not self._items
            and not self._short_looks
            and self.end is not None
            and self.fetched_to >= self.end
        )

    @property
    def is_rewound(self) -> bool:
        """Whether the partition ends before what was read, and did so each time of several."""
        return self._short_looks >= REWOUND_LOOKS

    @property
    def lag(self) -> int:
        """Records up to the known end that were not handed out."""
        return max(0, (self.end or 0) - (self.handed_to or 0))

    def restart(self, offset: int) -> None:
        """Begin again at an offset."""
        self._items.clear()
        self.held_bytes = 0
        self.handed_to = self.fetched_to = offset

    def add(self, records: Sequence[SourceRecord]) -> None:
        """Take fetched records, in order; what is here already is passed over."""
        for record in records:
            if record.offset >= self.fetched_to:
                self._items.append(record)
                self.held_bytes += len(record.payload)
                self.fetched_to = record.offset + 1

    def skip_to(self, offset: int) -> None:
        """Pass over offsets that hold no records, such as the marks of transactions."""
        self.fetched_to = max(self.fetched_to, offset)
        if not self._items:
            self.handed_to = self.fetched_to

    def miss(self, end: int, reason: str, *, begins_there: bool = False) -> None:
        """Note that everything before `end` is gone.

        Args:
            end: Offset of the next record.
            reason: Why, in words.
            begins_there: The log does not hold it because it begins at `end` now.
        """
        first, last = self.fetched_to, self._items[-1] if self._items else None
        if isinstance(last, SourceGap) and (last.end, last.reason) == (first, reason):
            self._items.pop()
            first = last.first
        self._items.append(SourceGap(first, end, reason, is_beginning=begins_there and first == 0))
        self.fetched_to = end

    def take(self, max_records: int, max_bytes: int) -> Poll:
        """Hand out the next records, at least one if there is any."""
        records: list[SourceRecord] = []
        gaps: list[SourceGap] = []
        taken = 0
        next_offset = self.handed_to or 0
        while self._items and len(records) + len(gaps) < max_records:
            item = self._items[0]
            if isinstance(item, SourceGap):
                gaps.append(item)
                next_offset = item.end
            else:
                if records and taken + len(item.payload) > max_bytes:
                    break
                records.append(item)
                taken += len(item.payload)
                next_offset = item.offset + 1
                self.appended_us = item.append_time_us
            self._items.popleft()
        self.held_bytes -= taken
        self.handed_to = next_offset
        exhausted = not records and not gaps
        return Poll(records, gaps, next_offset, exhausted=exhausted, sealed=False)

    def note_end(self, end: int, now: float) -> None:
        """Take the partition's end as it is at a moment of the monotonic clock."""
        self.end = end
        is_short = self.handed_to is not None and end < self.fetched_to
        self._short_looks = self._short_looks + 1 if is_short else 0
        self._asked_at = now
        self._confirmed = True

    def is_unread(self, now: float) -> bool:
        """Whether records may wait here that nobody read: then its silence means nothing."""
        unheard = now - self._asked_at
        if unheard > SERVED_SECONDS:
            return False
        return not self.is_read or not self._confirmed or unheard > CONFIRMED_SECONDS
