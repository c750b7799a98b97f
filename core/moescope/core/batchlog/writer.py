"""The one process that appends to a partition."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Self

from moescope.core.batchlog.entries import Entry, checked_time
from moescope.core.batchlog.errors import (
    BatchLogAppendError,
    BatchLogReadError,
    BatchLogSyncError,
    BatchLogUsageError,
    BatchLogWriteError,
)
from moescope.core.batchlog.files import sync_folder, write_errors
from moescope.core.batchlog.frames import encode_header, frame_bytes, segment_seed
from moescope.core.batchlog.names import segment_path
from moescope.core.batchlog.opening import lock_partition, refuse_sealed, settle_meta, sync_file
from moescope.core.batchlog.partition import (
    AppendClock,
    Segment,
    partition_path,
    write_seal,
)
from moescope.core.batchlog.recovery import Recovery, recover
from moescope.core.batchlog.retention import ClosedSegments
from moescope.core.batchlog.segment_file import MAX_FRAMES_PER_WRITE, Frame, Payload, SegmentFile
from moescope.core.batchlog.settings import WriterSettings
from moescope.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType

    from moescope.core.batchlog.drops import DropLedger


class BatchLogWriter:
    """Appends records to one partition; creates the partition if it does not exist.

    One writer object belongs to one thread of one process. It holds the partition's lock until it
    is closed, and a forked child keeps the lock held as long as the child lives; calls in the
    child are refused. Every append goes straight to the operating system, so that an appended
    record survives the death of the process.

    Args:
        root: Log root; created if it does not exist.
        partition: Partition name, for example the node.
        domain: Watermark domain. None takes that of an existing partition, "live" for a new one.
        append_clock: Whether append times mean something. None takes that of an existing
            partition, "clock" for a new one.
        settings: Sizes, byte cap and durability.
        clock: Source of append times.
        before_removal: Called before the byte cap removes records: consumers that are further than
            their cursors can move them then. It must not raise.

    Raises:
        BatchLogLockedError: Another writer has the partition (retriable).
        BatchLogSealedError: The partition is sealed.
        BatchLogUsageError: The name cannot be a partition's, or the partition exists with another
            domain or append clock.
        BatchLogFormatError: A metadata file is damaged or of a newer version.
        BatchLogWriteError: The file system refused (retriable).
        BatchLogReadError: The existing log cannot be read (retriable).
    """

    def __init__(
        self,
        root: Path,
        partition: str,
        *,
        domain: str | None = None,
        append_clock: AppendClock | None = None,
        settings: WriterSettings | None = None,
        clock: Clock | None = None,
        before_removal: Callable[[], None] | None = None,
    ) -> None:
        self.settings = settings or WriterSettings()
        self.path = partition_path(root, partition)
        self._clock = clock or SystemClock()
        self._before_removal = before_removal
        self._process = os.getpid()
        self._failure: BatchLogSyncError | None = None
        with (
            contextlib.ExitStack() as on_error,
            write_errors(f"open the partition {partition!r}", self.path),
        ):
            self.path.mkdir(parents=True, exist_ok=True)
            sync_folder(root)
            self._lock = lock_partition(self.path, partition)
            on_error.callback(os.close, self._lock)
            self.meta = settle_meta(self.path, partition, domain, append_clock)
            refuse_sealed(self.path, partition)
            self._open_log()
            on_error.pop_all()

    def _open_log(self) -> None:
        self._closed = ClosedSegments(
            self.path, self.meta.name, self.settings.cap_policy, closed=()
        )
        found = recover(self.path, self.meta.name, self._closed.ledger)
        for segment, size in found.closed:
            self._closed.add(segment, size)
        if found.truncated_bytes and found.active_bytes == 0 and found.closed:
            SegmentFile(*found.closed[-1]).close()
        self.recovery: Recovery = found
        self._next_offset = found.next_offset
        self._last_ring_to = found.last_ring_to
        self._active = SegmentFile(found.active, found.active_bytes)
        self._seed = segment_seed(self.meta.name, found.active.base_offset)
        self._unsynced: list[Segment] = [segment for segment, _ in found.closed]
        sync_folder(self.path)

    def append(
        self,
        payload: Payload,
        ring_from: int = 0,
        ring_to: int = 0,
        append_time_us: int | None = None,
    ) -> int:
        """Append one record.

        When this returns, the record survives the death of the process; `flush` makes it survive
        a power loss.

        Args:
            payload: Any bytes, at most `settings.max_payload_bytes`.
            ring_from: First ring position that the record came from.
            ring_to: Ring position after the last one; 0 and 0 for a record from no ring.
            append_time_us: Microseconds since the Unix epoch; the clock's time by default. Not
                accepted in a partition without append times.

        Returns:
            The record's offset.

        Raises:
            PayloadTooLargeError: Nothing was written.
            BatchLogUsageError: An argument is out of range, or the writer is closed or forked.
            BatchLogFullError: The byte cap is reached and unread records may not go (retriable).
            BatchLogWriteError: The disk is full or refused (retriable); nothing is left of the
                record.
            BatchLogSyncError: An earlier sync failed; this writer appends no more.
        """
        return self._append([Entry(payload, ring_from, ring_to, append_time_us)])[0]

    def append_many(self, entries: Iterable[Entry]) -> range:
        """Append records in one go; with "batch" durability they are on disk when it returns.

        All arguments are checked before anything is written.

        Returns:
            The offsets, in the order of the entries.

        Raises:
            BatchLogAppendError: As for `append`; its `appended` says how many records are in the
                log nevertheless, always the first ones. Retry with the others.
            BatchLogSyncError: All records are in the log, but the disk did not confirm them.
            BatchLogUsageError: As for `append`; nothing was written.
        """
        offsets = self._append(list(entries))
        self.flush()
        return offsets

    def flush(self, *, sync: bool | None = None) -> None:
        """Wait until everything appended survives a power loss.

        Args:
            sync: Whether to wait for the disk; by default only with "batch" durability.

        Raises:
            BatchLogSyncError: The disk did not confirm; this writer appends no more.
            BatchLogUsageError: The writer is closed or forked.
        """
        self._check_usable()
        if not (self.settings.durability == "batch" if sync is None else sync):
            return
        try:
            for segment in self._unsynced:
                sync_file(segment.path)
            self._active.sync()
        except OSError as error:
            self._failure = BatchLogSyncError(
                f"The disk did not confirm records of the partition {self.meta.name!r}.",
                why=str(error),
                next_step="Check the disk, then open the partition again.",
            )
            raise self._failure from error
        self._unsynced.clear()

    def seal(self) -> None:
        """Declare the partition complete, and close the writer.

        Raises:
            BatchLogWriteError: The marker cannot be written (retriable); the writer stays open.
            BatchLogSyncError: The disk did not confirm the records; the partition is not sealed.
            BatchLogUsageError: The writer is closed or forked.
        """
        self.flush(sync=True)
        with write_errors(f"seal the partition {self.meta.name!r}", self.path):
            write_seal(self.path, self._next_offset)
        self.close()

    def close(self) -> None:
        """Release the partition; calling it again does nothing. It does not wait for the disk."""
        if self._process == 0:
            return
        self._process = 0
        self._active.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Flush by policy unless an error is on its way, then close."""
        try:
            if kind is None and self._process == os.getpid() and self._failure is None:
                self.flush()
        finally:
            self.close()

    @property
    def next_offset(self) -> int:
        """Offset that the next record gets."""
        return self._next_offset

    @property
    def first_offset(self) -> int:
        """Offset of the oldest record that is kept."""
        return self._closed.first_offset(self._active.segment)

    @property
    def total_bytes(self) -> int:
        """Bytes of all segments."""
        return self._closed.total_bytes + self._active.size

    @property
    def drops(self) -> DropLedger:
        """What the byte cap removed since the partition was created."""
        return self._closed.ledger

    @property
    def dropped_records(self) -> int:
        """Records that the byte cap removed before every cursor had passed them."""
        return self.drops.dropped_records

    @property
    def dropped_bytes(self) -> int:
        """Bytes of the frames of `dropped_records`."""
        return self.drops.dropped_bytes

    def last_ring_to(self) -> int:
        """Ring position up to which the log has recorded: where a restarted agent resumes.

        It is the `ring_to` of the last record that came from a ring, kept across restarts and
        drops; 0 if there never was one.
        """
        return self._last_ring_to

    def _append(self, entries: Sequence[Entry]) -> range:
        self._check_usable()
        if self._failure is not None:
            raise self._failure
        times = [
            checked_time(entry, self.settings.largest_payload, self.meta, self._clock)
            for entry in entries
        ]
        first = self._next_offset
        start = 0
        try:
            while start < len(entries):
                stop = self._fitting(entries, start)
                if stop == start:
                    self._make_room(frame_bytes(len(entries[start].payload)))
                    stop = start + 1
                self._write(entries[start:stop], times[start:stop])
                start = stop
        except BatchLogAppendError as error:
            error.appended = self._next_offset - first
            raise
        return range(first, self._next_offset)

    def _fitting(self, entries: Sequence[Entry], start: int) -> int:
        """Index after the last entry that can follow without a new segment or a removal."""
        room = self.settings.roll_bytes - self._active.size
        if self.settings.byte_cap is not None:
            room = min(room, self.settings.byte_cap - self.total_bytes)
        last = min(len(entries), start + MAX_FRAMES_PER_WRITE)
        for index in range(start, last):
            room -= frame_bytes(len(entries[index].payload))
            if room < 0:
                return index
        return last

    def _make_room(self, needed: int) -> None:
        try:
            self._roll_and_remove(needed)
        except BatchLogReadError as error:
            raise BatchLogWriteError(
                error.what, why=error.why, next_step=error.next_step
            ) from error

    def _roll_and_remove(self, needed: int) -> None:
        with write_errors(f"make room in the partition {self.meta.name!r}", self.path):
            if self._active.size and self._active.size + needed > self.settings.roll_bytes:
                self._roll()
            cap = self.settings.byte_cap
            if cap is None or self.total_bytes + needed <= cap:
                return
            if self._active.size and self._active.size + needed > cap:
                self._roll()
            if self._before_removal is not None:
                self._before_removal()
            self._closed.remove_oldest(
                self.total_bytes + needed - cap, self._active.segment, self._last_ring_to
            )

    def _roll(self) -> None:
        segment = Segment(self._next_offset, segment_path(self.path, self._next_offset))
        following = SegmentFile(segment)
        finished, self._active = self._active, following
        self._seed = segment_seed(self.meta.name, segment.base_offset)
        self._closed.add(finished.segment, finished.size)
        self._unsynced.append(finished.segment)
        finished.close()
        sync_folder(self.path)

    def _write(self, entries: Sequence[Entry], times: Sequence[int]) -> None:
        frames = [
            Frame(
                encode_header(
                    self._seed,
                    self._next_offset + index,
                    time_us,
                    (entry.ring_from, entry.ring_to),
                    entry.payload,
                ),
                entry.payload,
            )
            for index, (entry, time_us) in enumerate(zip(entries, times, strict=True))
        ]
        written, error = self._active.write(frames)
        self._next_offset += written
        for entry in entries[:written]:
            if entry.ring_from or entry.ring_to:
                self._last_ring_to = entry.ring_to
        if error is not None:
            raise BatchLogWriteError(
                f"Could not append to the partition {self.meta.name!r}.",
                why=f"{error.strerror or error} ({error.filename or self._active.segment.path})",
                next_step="Free disk space or raise the limit; then append the rest again.",
            ) from error

    def _check_usable(self) -> None:
        if self._process == os.getpid():
            return
        if self._process == 0:
            raise BatchLogUsageError(
                f"The writer of the partition {self.meta.name!r} is closed.",
                next_step="Open a new one.",
            )
        raise BatchLogUsageError(
            f"The writer of the partition {self.meta.name!r} belongs to another process.",
            why="It was opened before a fork.",
            next_step="Open the writer in the process that uses it.",
        )
