"""A node's partition of the batch log, as the agent writes it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from moescope.core.batch import DropCounters
from moescope.core.batchlog import BatchLogReader, BatchLogWriter, WriterSettings
from moescope.core.wire import BatchDecodeError, peek_identity

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from moescope.core.clock import Clock


class LastBatch(NamedTuple):
    """The newest batch that the log holds."""

    incarnation: int
    sequence: int
    ring_to: int


class _Appended(NamedTuple):
    offset: int
    rows: int
    told: DropCounters


_NOTHING: Final = DropCounters()


class NodeLog:
    """Appends batches of one node, and knows what the byte cap took away.

    Args:
        root: Log root.
        node: Partition name.
        settings: Of the log.
        clock: Source of append times.
        before_drop: Called before the byte cap removes batches, as `BatchLogWriter` does.

    Attributes:
        last: The newest batch when the log was opened, or None.
        reported_batches: Dropped batches that a batch header has told, in batches that were not
            dropped themselves.
        reported_rows: Dropped rows, the same way.
        untold_rejected_rows: Rejected rows that only dropped batches have told.

    Raises:
        BatchLogError: The partition cannot be opened.
    """

    def __init__(
        self,
        root: Path,
        node: str,
        settings: WriterSettings,
        clock: Clock,
        before_drop: Callable[[], None] | None = None,
    ) -> None:
        self._writer = BatchLogWriter(
            root, node, settings=settings, clock=clock, before_removal=before_drop
        )
        try:
            self.last = _last_batch(root, node)
        except BaseException:
            self._writer.close()
            raise
        self._appended: deque[_Appended] = deque()
        self._counted_batches = self._writer.dropped_records
        self._dropped_rows = 0
        self.untold_rejected_rows = 0
        self.reported_batches = self._counted_batches
        self.reported_rows = 0

    @property
    def dropped_batches(self) -> int:
        """Batches dropped since the partition was made, read by nobody."""
        return self._writer.dropped_records

    @property
    def dropped_rows(self) -> int:
        """Rows of the dropped batches that this object appended, and those that they told lost."""
        return self._dropped_rows

    def append(
        self, payload: bytes, ring_from: int, ring_to: int, rows: int, told: DropCounters = _NOTHING
    ) -> None:
        """Append one batch of that many rows, whose header tells of these drops.

        Raises:
            BatchLogAppendError: Nothing was appended.
        """
        try:
            offset = self._writer.append(payload, ring_from, ring_to)
            self._appended.append(_Appended(offset, rows, told))
        finally:
            self._count_drops()

    def flush(self) -> None:
        """Wait for the disk, if the settings say so.

        Raises:
            BatchLogSyncError: The disk did not confirm.
        """
        self._writer.flush()

    def close(self) -> None:
        """Release the partition."""
        self._writer.close()

    def _count_drops(self) -> None:
        removed = []
        while self._appended and self._appended[0].offset < self._writer.first_offset:
            removed.append(self._appended.popleft())
        dropped = self._writer.dropped_records - self._counted_batches
        if dropped:
            # Of what the cap removed, the oldest may have been read: the newest were not.
            for batch in removed[-dropped:]:
                self._forget(batch)
            self._counted_batches += dropped

    def _forget(self, batch: _Appended) -> None:
        """Count a batch that nobody will read; what it told has to be told again."""
        self._dropped_rows += batch.rows + batch.told.ring_rows + batch.told.unseen_rows
        self.reported_batches -= batch.told.log_batches
        self.reported_rows -= batch.told.log_rows
        self.untold_rejected_rows += batch.told.rejected_rows


def _last_batch(root: Path, node: str) -> LastBatch | None:
    with BatchLogReader(root, node) as reader:
        offset = reader.end_offset()
        while offset > reader.first_offset():
            offset -= 1
            for record in reader.read(offset, max_records=1).records:
                try:
                    _, incarnation, sequence = peek_identity(record.payload)
                except BatchDecodeError:
                    continue
                return LastBatch(incarnation, sequence, record.ring_to)
    return None
