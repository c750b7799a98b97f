"""Walk the frames of one segment: complete records, and what is damaged between them."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from crc32c import crc32c

from moescope.core.batchlog.errors import BatchLogReadError
from moescope.core.batchlog.files import read_errors
from moescope.core.batchlog.frames import (
    CHECKED_FROM,
    FRAME_VERSION,
    HEADER_BYTES,
    MAGIC,
    LogRecord,
    is_valid_frame,
    plausible_header,
    segment_seed,
    unpack_header,
)

if TYPE_CHECKING:
    from moescope.core.batchlog.partition import Segment

_BUFFER_BYTES: Final = 1024 * 1024  # stays in the processor's cache between read and checksum

CorruptReason = Literal["bad frame", "missing records"]


@dataclass(frozen=True, slots=True)
class CorruptRange:
    """Records that are lost to damage, or bytes between two records that are no frame.

    Attributes:
        offset_from: First lost record.
        offset_to: The record after the last lost one; equal to `offset_from` if none is lost.
        reason: "bad frame" if there are unreadable bytes, "missing records" if there are none.
        raw_bytes: How many unreadable bytes were skipped.
        segment: File name of the segment.
        position: Where in the segment the unreadable bytes begin.
    """

    offset_from: int
    offset_to: int
    reason: CorruptReason
    raw_bytes: int
    segment: str
    position: int


class Stop(enum.Enum):
    """Why a scan came back."""

    BUDGET = "enough records or bytes"
    END = "every byte of the segment is read"
    TAIL = "bytes follow that are no complete frame, or not yet"


class SegmentScanner:
    """Reads one segment forward, resumable, without a lock and without mapping it into memory.

    (A mapped file that recovery truncates would kill the reading process.)

    Args:
        segment: What to read.
        partition: Partition name, which the checksums depend on.
        position: Byte position of a frame's start.
        offset: Record number expected there.

    Raises:
        FileNotFoundError: The byte cap removed the segment meanwhile.
        BatchLogReadError: The segment cannot be opened.
    """

    def __init__(
        self, segment: Segment, partition: str, position: int = 0, offset: int | None = None
    ) -> None:
        self.segment = segment
        self.position = position
        self.offset = segment.base_offset if offset is None else offset
        self.last_ring_to: int | None = None
        self._seed = segment_seed(partition, segment.base_offset)
        self._file = _open_for_reading(segment)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._buffer_from = 0
        self._buffer_to = 0
        self._unresolved: tuple[int, int, int] | None = None

    def close(self) -> None:
        """Close the segment."""
        os.close(self._file)

    def collect(
        self,
        wanted: int,
        limit: int | None,
        *,
        max_records: int,
        max_bytes: int,
        records: list[LogRecord] | None,
        corrupt: list[CorruptRange],
    ) -> Stop:
        """Append the records from an offset on, in order, and the damage between them.

        Args:
            wanted: Records below this offset are passed without being kept.
            limit: First offset that is not in this segment, if nothing more will be written to
                it; None while a writer may append.
            max_records: Stop when `records` holds that many.
            max_bytes: Stop when the payloads of `records` reach that many bytes.
            records: Receives complete records; None to count them only.
            corrupt: Receives damage at or after `wanted`.

        Raises:
            BatchLogReadError: The operating system refused to read.
        """
        room = max_bytes - sum(len(record.payload) for record in records or ())
        fresh = False  # what the buffer holds from an earlier call may be half a frame
        while True:
            room = self._take_from_buffer(wanted, max_records, room, records)
            if records is not None and (len(records) >= max_records or room <= 0):
                return Stop.BUDGET
            if not fresh or self._buffer_from != self.position or self._needs_more():
                self._fill()
                fresh = True
                continue
            stop = self._pass_damage(wanted, limit, corrupt)
            if stop is not None:
                return stop
            fresh = False

    def run_to_end(self, corrupt: list[CorruptRange]) -> Stop:
        """Pass all records that are complete now, keeping none.

        Args:
            corrupt: Receives damage between them.

        Raises:
            BatchLogReadError: The operating system refused to read.
        """
        return self.collect(0, None, max_records=1, max_bytes=1, records=None, corrupt=corrupt)

    def tail_bytes(self) -> bytes:
        """All bytes from the current position to the end of the file.

        Raises:
            BatchLogReadError: The operating system refused to read.
        """
        with read_errors(f"read {self.segment.path.name}", self.segment.path):
            size = os.fstat(self._file).st_size
            return os.pread(self._file, max(size - self.position, 0), self.position)

    def _take_from_buffer(
        self, wanted: int, max_records: int, room: int, records: list[LogRecord] | None
    ) -> int:
        seed = self._seed
        at = self.position - self._buffer_from
        stop = self._buffer_to - self._buffer_from
        offset = self.offset
        left = max_records - len(records or ())
        with memoryview(self._buffer) as view:
            while left > 0 and room > 0 and stop - at >= HEADER_BYTES:
                magic, crc, version, flags, length, found, time_us, ring_from, ring_to = (
                    unpack_header(view, at)
                )
                end = at + HEADER_BYTES + length
                if (
                    end > stop
                    or found != offset
                    or magic != MAGIC
                    or version != FRAME_VERSION
                    or flags
                    or crc32c(view[at + CHECKED_FROM : end], seed) != crc
                ):
                    break
                if records is not None and offset >= wanted:
                    payload = bytes(view[at + HEADER_BYTES : end])
                    records.append(LogRecord(offset, time_us, ring_from, ring_to, payload))
                    left -= 1
                    room -= length
                if ring_from or ring_to:
                    self.last_ring_to = ring_to
                offset += 1
                at = end
        self.offset = offset
        self.position = self._buffer_from + at
        return room

    def _needs_more(self) -> bool:
        """Whether the frame at the position is longer than the buffer was when it was filled."""
        if self._buffer_to - self._buffer_from < len(self._buffer):
            return False
        header = plausible_header(memoryview(self._buffer), 0)
        if header is None or header.frame_bytes <= len(self._buffer):
            return False
        self._buffer = bytearray(header.frame_bytes)
        return True

    def _fill(self) -> None:
        with read_errors(f"read {self.segment.path.name}", self.segment.path):
            count = os.preadv(self._file, [self._buffer], self.position)
        self._buffer_from = self.position
        self._buffer_to = self.position + count

    def _pass_damage(
        self, wanted: int, limit: int | None, corrupt: list[CorruptRange]
    ) -> Stop | None:
        """Jump to the next valid frame, or say why there is none; None means go on."""
        with read_errors(f"read {self.segment.path.name}", self.segment.path):
            status = os.fstat(self._file)
        left = status.st_size - self.position
        if left <= 0 and (limit is None or limit <= self.offset):
            return Stop.END
        state = (self.position, status.st_size, status.st_mtime_ns)
        if limit is None and state == self._unresolved:
            return Stop.TAIL
        found = self._next_valid(status.st_size, limit)
        if found is None and limit is None:
            self._unresolved = state
            return Stop.TAIL
        position, offset = found or (status.st_size, max(limit or 0, self.offset))
        self._report(position, offset, wanted, corrupt)
        self.position = position
        self.offset = offset
        return None if found else Stop.END

    def _report(self, position: int, offset: int, wanted: int, corrupt: list[CorruptRange]) -> None:
        raw_bytes = position - self.position
        completed_meanwhile = not raw_bytes and offset == self.offset
        if completed_meanwhile:
            return
        if offset > wanted or offset == self.offset == wanted:
            corrupt.append(
                CorruptRange(
                    offset_from=max(self.offset, wanted),
                    offset_to=offset,
                    reason="bad frame" if raw_bytes else "missing records",
                    raw_bytes=raw_bytes,
                    segment=self.segment.path.name,
                    position=self.position,
                )
            )

    def _next_valid(self, size: int, limit: int | None) -> tuple[int, int] | None:
        """Position and offset of the first valid frame from the position on."""
        at = self.position
        keep = len(MAGIC) - 1
        with read_errors(f"read {self.segment.path.name}", self.segment.path):
            while at < size:
                chunk = os.pread(self._file, _BUFFER_BYTES, at)
                hit = chunk.find(MAGIC)
                while hit >= 0:
                    offset = self._valid_offset(at + hit, size)
                    if offset is not None and (limit is None or offset < limit):
                        return at + hit, offset
                    hit = chunk.find(MAGIC, hit + 1)
                if len(chunk) <= keep:
                    return None
                at += len(chunk) - keep
        return None

    def _valid_offset(self, position: int, size: int) -> int | None:
        header = plausible_header(os.pread(self._file, HEADER_BYTES, position), 0)
        if header is None or header.offset < self.offset or position + header.frame_bytes > size:
            return None
        frame = os.pread(self._file, header.frame_bytes, position)
        return header.offset if is_valid_frame(frame, self._seed) else None


def last_plausible_frame(tail: bytes, offset: int) -> tuple[int, int] | None:
    """Position and offset of the last thing in an unreadable tail that looks like a frame.

    Args:
        tail: Bytes after the last valid frame of a segment.
        offset: Record number expected at their start.
    """
    at = tail.rfind(MAGIC)
    while at >= 0:
        header = plausible_header(tail, at)
        if header is not None and 0 <= header.offset - offset <= at // HEADER_BYTES:
            return at, header.offset
        at = tail.rfind(MAGIC, 0, at + len(MAGIC) - 1)
    return None


def _open_for_reading(segment: Segment) -> int:
    try:
        return os.open(segment.path, os.O_RDONLY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BatchLogReadError(
            f"Could not open {segment.path.name}.",
            why=str(error),
            next_step="Check the permissions of the log root, then try again.",
        ) from error
