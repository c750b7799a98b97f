"""One node's partition of the batch log, read ahead and never lost sight of."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from moescope.core.batchlog import BatchLogReader, Cursor
from moescope.producers.shipping.sharing import NodeLoad
from moescope.producers.shipping.waiting import QueueLimit
from moescope.producers.shipping.window import SendWindow

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.batchlog import LogRecord
    from moescope.producers.shipping.waiting import BackOff
    from moescope.producers.shipping.window import Sent

CURSOR: Final = "kafka"
READ_BYTES: Final = 1 << 20
READ_RECORDS: Final = 256

_log = logging.getLogger("moescope.producers")


class NodeFeed:
    """Gives a node's records in order, and moves its cursor behind what has arrived.

    Args:
        root: Log root.
        node: Partition name.
        back_off: Pauses after a failure that concerns this node alone.

    Attributes:
        node: As given.
        window: What is on its way.
        back_off: As given.
        queue_limit: How many records may be on their way.
        held_until: Monotonic time before which nothing is sent.
        unreadable: Records that were lost to damage of the log.
        skipped: Records that the byte cap removed before they were sent.

    Raises:
        BatchLogError: The partition cannot be opened, or the cursor not be registered.
    """

    def __init__(self, root: Path, node: str, back_off: BackOff) -> None:
        self.node = node
        self.window = SendWindow()
        self.back_off = back_off
        self.queue_limit = QueueLimit()
        self.held_until = 0.0
        self.unreadable = 0
        self.skipped = 0
        self._reader = BatchLogReader(root, node)
        self._cursor = Cursor(root, node, CURSOR)
        self._ahead: deque[LogRecord] = deque()
        self._position = self._settled_to = self._cursor.offset
        self._saving = threading.Lock()
        self._end_seen = 0
        self._is_at_end = False

    @property
    def done_to(self) -> int:
        """Every record below has arrived, or never will."""
        return self.window.first_unsettled(self._next_to_send)

    @property
    def has_work(self) -> bool:
        """Whether something is on its way or waits to be sent, as far as the log was read."""
        return bool(len(self.window) or self._ahead or not self._is_at_end)

    @property
    def _next_to_send(self) -> int:
        return self._ahead[0].offset if self._ahead else self._position

    def load(self, now: float) -> NodeLoad:
        """What is on its way."""
        oldest = self.window.oldest_sent_at()
        return NodeLoad(self.window.bytes, 0.0 if oldest is None else now - oldest)

    def peek(self) -> LogRecord | None:
        """The next record to send, None where nothing follows yet.

        Raises:
            BatchLogError: The log cannot be read.
        """
        while True:
            while self._ahead and self.window.is_settled(self._ahead[0].offset):
                self.window.pass_by(self._ahead.popleft().offset)
            if self._ahead:
                return self._ahead[0]
            if not self._read():
                return None

    def sent(self, now: float) -> None:
        """The record that `peek` gave is on its way."""
        record = self._ahead.popleft()
        self.window.send(record.offset, len(record.payload), now)

    def settle(self, offset: int) -> tuple[Sent | None, bool]:
        """A record has arrived, or was given up for good; as `SendWindow.settle`."""
        found = self.window.settle(offset, again_from=self.done_to)
        self._settled_to = self.done_to
        return found

    def rewind(self) -> None:
        """Send again from the first record that has not arrived."""
        self._position = self.done_to
        self.window.rewind()
        self._ahead.clear()
        self._is_at_end = False

    def record_at(self, offset: int) -> LogRecord | None:
        """A record, read again; None where it is gone.

        Raises:
            BatchLogError: The log cannot be read.
        """
        with BatchLogReader(self._reader.path.parent, self.node) as reader:
            found = reader.read(offset, max_records=1).records
        return found[0] if found and found[0].offset == offset else None

    def save(self) -> None:
        """Move the cursor to what has arrived.

        Raises:
            BatchLogWriteError: The file system refused; the cursor stays.
        """
        self._settled_to = self.done_to
        self.save_settled()

    def save_settled(self) -> None:
        """Move the cursor to what had arrived when that was last noticed; from any thread.

        Raises:
            BatchLogWriteError: The file system refused; the cursor stays.
        """
        with self._saving:
            self._cursor.advance(max(self._settled_to, self._cursor.offset))

    def look_again(self) -> None:
        """Forget that the end was seen: something may have been appended since."""
        self._is_at_end = False

    def end_offset(self) -> int:
        """Offset after the last record of the log.

        Raises:
            BatchLogError: The log cannot be read.
        """
        if self._is_at_end:
            return self._position
        # Costs reading what was appended: only where the feed itself does not keep up.
        self._end_seen = self._reader.end_offset()
        return self._end_seen

    def is_over(self) -> bool:
        """Whether everything has arrived and nothing follows.

        Raises:
            BatchLogError: The log cannot be read.
        """
        return not self.has_work and self._reader.is_finished(self.done_to)

    def dropped_batches(self) -> int:
        """Records that the byte cap removed unshipped, since the partition was made.

        Raises:
            BatchLogError: The ledger cannot be read.
        """
        return self._reader.drops().dropped_records

    def log_bytes(self) -> int:
        """Bytes of the partition's segments.

        Raises:
            OSError: The folder cannot be read.
        """
        return sum(
            file.stat().st_size for file in self._reader.path.iterdir() if file.suffix == ".seg"
        )

    def close(self) -> None:
        """Close the log; the cursor stays registered."""
        self._reader.close()

    def _read(self) -> bool:
        result = self._reader.read(self._position, READ_RECORDS, READ_BYTES)
        if result.gap is not None:
            gone = self.window.remove(result.gap.offset_from, result.gap.offset_to)
            self.skipped += gone
            _log.warning("Node %s: the byte cap removed %d batches unshipped.", self.node, gone)
        for damage in result.corrupt:
            self.unreadable += self.window.remove(damage.offset_from, damage.offset_to)
            _log.error(
                "Node %s: the batch log is damaged at batch %d (%s).",
                *(self.node, damage.offset_from, damage.reason),
            )
        has_moved = result.next_offset > self._position
        self._position = result.next_offset
        self._ahead.extend(result.records)
        self._is_at_end = not has_moved
        return has_moved
