"""Read a partition while another process may be appending to it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from moescope.core.batchlog.drops import DropLedger, read_drops
from moescope.core.batchlog.errors import BatchLogReadError, BatchLogUsageError
from moescope.core.batchlog.partition import (
    Segment,
    existing_meta,
    list_segments,
    partition_path,
    sealed_end_offset,
)
from moescope.core.batchlog.scan import CorruptRange, SegmentScanner, Stop

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from moescope.core.batchlog.frames import LogRecord

_MARK_EVERY_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that the byte cap removed before they were read.

    Attributes:
        offset_from: First removed record that was asked for.
        offset_to: First record that is still there.
    """

    offset_from: int
    offset_to: int

    @property
    def count(self) -> int:
        """How many records are missing."""
        return self.offset_to - self.offset_from


@dataclass(slots=True)
class ReadResult:
    """What one read found; every offset below `next_offset` is in exactly one of the three parts.

    Attributes:
        next_offset: Where the next read goes on.
        records: Complete, verified records in offset order.
        gap: What the byte cap removed before the first of them, if anything.
        corrupt: Damage before, between or after them, in offset order.
    """

    next_offset: int
    records: list[LogRecord] = field(default_factory=list)
    gap: Gap | None = None
    corrupt: list[CorruptRange] = field(default_factory=list)


class BatchLogReader:
    """Reads one partition without a lock, also while a writer appends, rolls and drops.

    One reader object belongs to one thread; any number of readers may be open. After a fork the
    child may go on using its copy.

    Args:
        root: Log root.
        partition: Partition name.

    Raises:
        PartitionNotFoundError: There is no such partition (yet).
        BatchLogFormatError: Its metadata are damaged or of a newer version.
        BatchLogReadError: The operating system refused (retriable).
    """

    def __init__(self, root: Path, partition: str) -> None:
        self.path = partition_path(root, partition)
        self.meta = existing_meta(self.path, partition)
        self._segments: list[Segment] = []
        self._sealed_end: int | None = None
        self._current: SegmentScanner | None = None
        self._tail: SegmentScanner | None = None
        self._marks: dict[int, list[tuple[int, int]]] = {}
        self._refresh()

    def read(
        self, offset: int, max_records: int = 1_000, max_bytes: int = 8 * 1024 * 1024
    ) -> ReadResult:
        """Read complete records from an offset on; none if nothing follows yet.

        Args:
            offset: First record wanted. One that is gone is reported as a gap.
            max_records: Most records to return.
            max_bytes: Stop once the payloads reach this many bytes; the record that reaches them
                is still returned.

        Raises:
            BatchLogUsageError: An argument is out of range.
            BatchLogReadError: The operating system refused (retriable).
            BatchLogFormatError: The seal is damaged.
        """
        if offset < 0 or max_records < 1 or max_bytes < 1:
            raise BatchLogUsageError(
                f"Cannot read {max_records} records of {max_bytes} bytes from offset {offset}.",
                why="The offset is at least 0, the others at least 1.",
                next_step="Correct the call.",
            )
        result = ReadResult(next_offset=offset)
        while self._read_segment(result, max_records, max_bytes):
            pass
        return result

    def first_offset(self) -> int:
        """Offset of the oldest record that is kept.

        Raises:
            BatchLogReadError: The operating system refused (retriable).
            BatchLogFormatError: The seal is damaged.
        """
        self._refresh()
        return self._segments[0].base_offset if self._segments else 0

    def end_offset(self) -> int:
        """Offset after the last complete record.

        The first call reads the last segment; later ones only what was added.

        Raises:
            BatchLogReadError: The operating system refused (retriable).
            BatchLogFormatError: The seal is damaged.
        """
        while True:
            self._refresh()
            if self._sealed_end is not None:
                return self._sealed_end
            if not self._segments:
                return 0
            try:
                tail = self._tail_scanner(self._segments[-1])
            except FileNotFoundError:
                continue
            tail.run_to_end([])
            return tail.offset

    def is_sealed(self) -> bool:
        """Whether the partition is complete; what is not read yet is still there.

        Raises:
            BatchLogReadError: The operating system refused (retriable).
            BatchLogFormatError: The seal is damaged.
        """
        self._refresh()
        return self._sealed_end is not None

    def is_finished(self, next_offset: int) -> bool:
        """Whether the partition is sealed and a consumer that is at this offset has read it all."""
        return self.is_sealed() and next_offset >= self.end_offset()

    def drops(self) -> DropLedger:
        """What the byte cap removed since the partition was created.

        Raises:
            BatchLogReadError: The operating system refused (retriable).
            BatchLogFormatError: The ledger is damaged.
        """
        return read_drops(self.path)

    def close(self) -> None:
        """Close the open segments; the reader may be used again."""
        for scanner in (self._current, self._tail):
            if scanner is not None:
                scanner.close()
        self._current = self._tail = None

    def __enter__(self) -> Self:
        """The reader itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the open segments."""
        self.close()

    def _read_segment(self, result: ReadResult, max_records: int, max_bytes: int) -> bool:
        """Read on in one segment; whether the next call can find more."""
        try:
            scanner = self._scanner_at(result)
        except FileNotFoundError as error:
            known = self._segments
            self._refresh()
            if self._segments != known:  # the writer removed it: what remains begins later
                return True
            raise BatchLogReadError(
                f"A segment of the partition {self.meta.name!r} cannot be opened.",
                why=str(error),
                next_step="Look for a broken link in the partition's folder.",
            ) from error
        if scanner is None:
            return False
        removed = self._is_removed(scanner.segment)
        limit = self._limit(scanner.segment)
        stop = scanner.collect(
            result.next_offset,
            limit,
            max_records=max_records,
            max_bytes=max_bytes,
            records=result.records,
            corrupt=result.corrupt,
        )
        result.next_offset = max(result.next_offset, scanner.offset)
        self._mark(scanner)
        if stop is Stop.BUDGET:
            return False
        if removed:
            # The open file still had its records; what follows them is a gap, or what is left.
            scanner.close()
            self._current = None
            return True
        if limit is None:
            # Listed after the read: only what is complete now may be read to its very end.
            self._refresh()
            return self._is_removed(scanner.segment) or self._limit(scanner.segment) is not None
        return scanner.segment < self._segments[-1]

    def _scanner_at(self, result: ReadResult) -> SegmentScanner | None:
        """The scanner from which the next record can be read, after noting a gap before it."""
        offset = result.next_offset
        current = self._current
        if current is not None and current.offset == offset and not self._is_read(current):
            return current
        if not self._segments or offset < self._segments[0].base_offset:
            self._refresh()
        if not self._segments or (self._sealed_end is not None and offset >= self._sealed_end):
            return None
        first = self._segments[0].base_offset
        if offset < first:
            if result.records or result.corrupt:
                return None  # the next read begins with this gap
            began = result.gap.offset_from if result.gap else offset
            result.gap = Gap(began, first)
            result.next_offset = offset = first
        index = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1
        segment = self._segments[index]
        mark = self._nearest_mark(segment, offset)
        scanner = SegmentScanner(segment, self.meta.name, position=mark[1], offset=mark[0])
        if current is not None:
            current.close()
        self._current = scanner
        return scanner

    def _is_read(self, scanner: SegmentScanner) -> bool:
        limit = self._limit(scanner.segment)
        return limit is not None and scanner.offset >= limit

    def _is_removed(self, segment: Segment) -> bool:
        return bool(self._segments) and segment.base_offset < self._segments[0].base_offset

    def _limit(self, segment: Segment) -> int | None:
        """First offset after a complete segment, None if it may grow or its end is not known."""
        if self._is_removed(segment):
            return None
        index = bisect_right(
            self._segments, segment.base_offset, key=lambda other: other.base_offset
        )
        if index < len(self._segments):
            return self._segments[index].base_offset
        return self._sealed_end

    def _refresh(self) -> None:
        # The seal first: what is listed after it has been found is all there will ever be.
        self._sealed_end = sealed_end_offset(self.path)
        self._segments = list_segments(self.path)
        if self._segments:
            oldest = self._segments[0].base_offset
            self._marks = {base: marks for base, marks in self._marks.items() if base >= oldest}

    def _mark(self, scanner: SegmentScanner) -> None:
        marks = self._marks.setdefault(scanner.segment.base_offset, [])
        if scanner.position >= (marks[-1][1] if marks else 0) + _MARK_EVERY_BYTES:
            marks.append((scanner.offset, scanner.position))

    def _nearest_mark(self, segment: Segment, offset: int) -> tuple[int, int]:
        marks = self._marks.get(segment.base_offset, [])
        index = bisect_right(marks, offset, key=lambda mark: mark[0])
        return marks[index - 1] if index else (segment.base_offset, 0)

    def _tail_scanner(self, last: Segment) -> SegmentScanner:
        tail = self._tail
        if tail is None or tail.segment != last:
            scanner = SegmentScanner(last, self.meta.name)
            if tail is not None:
                tail.close()
            self._tail = tail = scanner
        return tail
