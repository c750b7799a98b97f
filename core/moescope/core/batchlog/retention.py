"""Make room under the byte cap by removing the oldest whole segments."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from moescope.core.batchlog.cursor import cursor_offsets
from moescope.core.batchlog.drops import DropLedger, read_drops, write_drops
from moescope.core.batchlog.errors import BatchLogFullError
from moescope.core.batchlog.scan import SegmentScanner, Stop

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.batchlog.partition import Segment
    from moescope.core.batchlog.settings import CapPolicy


class ClosedSegments:
    """The segments of a partition that are complete, and the ledger of those that went.

    Args:
        path: The partition's folder.
        partition: Partition name.
        policy: Whether unread records may go.
        closed: Complete segments in offset order, with their sizes in bytes.
    """

    def __init__(
        self, path: Path, partition: str, policy: CapPolicy, closed: tuple[tuple[Segment, int], ...]
    ) -> None:
        self.ledger: DropLedger = read_drops(path)
        self.total_bytes = sum(size for _, size in closed)
        self._path = path
        self._partition = partition
        self._policy = policy
        self._closed = list(closed)

    def first_offset(self, active: Segment) -> int:
        """Offset of the oldest record that is kept."""
        return (self._closed[0][0] if self._closed else active).base_offset

    def add(self, segment: Segment, size: int) -> None:
        """Take over a segment that the writer has completed."""
        self._closed.append((segment, size))
        self.total_bytes += size

    def remove_oldest(self, excess: int, active: Segment, last_ring_to: int) -> None:
        """Remove whole segments, oldest first, until that many bytes are gone or none is left.

        The ledger is on disk before a file goes: a crash in between is finished by recovery.

        Args:
            excess: Bytes to remove.
            active: The segment that follows the closed ones.
            last_ring_to: The writer's ring position, to be remembered.

        Raises:
            BatchLogFullError: Unread records are in the way, and the policy keeps them.
            OSError: The file system refused.
        """
        offsets = cursor_offsets(self._path)
        floor = min(offsets.values(), default=0)
        ledger = replace(self.ledger, last_ring_to=last_ring_to)
        count = removed = 0
        while removed < excess and count < len(self._closed):
            segment, size = self._closed[count]
            following = self._closed[count + 1][0] if count + 1 < len(self._closed) else active
            if floor < following.base_offset and self._policy == "refuse":
                break
            ledger = self._account(ledger, segment, size, following.base_offset, floor)
            removed += size
            count += 1
        if removed < excess and count < len(self._closed):
            # What is read stays as well: removing it would not make enough room.
            raise BatchLogFullError(
                "The batch log has reached its byte cap, and unread records fill it.",
                why=_who_holds(offsets, self._closed[count][0].base_offset),
                next_step="Let the consumers catch up, remove the cursors of those that are gone, "
                "raise the byte cap, or allow drop_oldest.",
            )
        if not count:
            return
        write_drops(self._path, ledger)
        self.ledger = ledger
        while count:
            segment, size = self._closed.pop(0)
            self.total_bytes -= size
            count -= 1
            segment.path.unlink(missing_ok=True)

    def _account(
        self, ledger: DropLedger, segment: Segment, size: int, end: int, floor: int
    ) -> DropLedger:
        base = segment.base_offset
        read_to = min(max(floor, base), end)
        read_bytes = size if read_to == end else self._bytes_below(segment, read_to)
        return replace(
            ledger,
            first_offset=end,
            dropped_records=ledger.dropped_records + end - read_to,
            dropped_bytes=ledger.dropped_bytes + size - read_bytes,
            released_records=ledger.released_records + read_to - base,
            released_bytes=ledger.released_bytes + read_bytes,
        )

    def _bytes_below(self, segment: Segment, offset: int) -> int:
        if offset == segment.base_offset:
            return 0
        scanner = SegmentScanner(segment, self._partition)
        try:
            stop = Stop.BUDGET
            while scanner.offset < offset and stop is Stop.BUDGET:
                stop = scanner.collect(
                    scanner.offset,
                    None,
                    max_records=1,
                    max_bytes=sys.maxsize,
                    records=[],
                    corrupt=[],
                )
            return scanner.position
        finally:
            scanner.close()


def _who_holds(offsets: dict[str, int], oldest: int) -> str:
    if not offsets:
        return f"No cursor is registered, so that everything from {oldest} on counts as unread."
    slowest = min(offsets, key=lambda name: offsets[name])
    return f"The cursor {slowest!r} is at {offsets[slowest]}; the oldest record is {oldest}."
