"""Bring a partition back to a valid state before a writer appends to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.core.batchlog.cursor import cursor_offsets
from moescope.core.batchlog.names import segment_path
from moescope.core.batchlog.partition import Segment, list_segments
from moescope.core.batchlog.scan import CorruptRange, SegmentScanner, Stop, last_plausible_frame

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.batchlog.drops import DropLedger


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recovery found in a partition, and where appending goes on.

    Attributes:
        next_offset: Offset of the next record.
        last_ring_to: `ring_to` of the last record that came from a ring, 0 if there is none.
        closed: Segments that nothing is appended to any more, with their sizes in bytes.
        active: The segment to append to; it may have to be created.
        active_bytes: Valid bytes of it.
        truncated_bytes: Bytes of an incomplete or invalid last frame that are to be cut off.
        corrupt: Damage in the last segment that is kept, for readers to report.
    """

    next_offset: int
    last_ring_to: int
    closed: tuple[tuple[Segment, int], ...]
    active: Segment
    active_bytes: int
    truncated_bytes: int
    corrupt: tuple[CorruptRange, ...]


@dataclass(frozen=True, slots=True)
class _Tail:
    next_offset: int
    last_ring_to: int | None
    valid_bytes: int
    truncated_bytes: int
    appendable: bool
    corrupt: tuple[CorruptRange, ...]


def recover(path: Path, partition: str, ledger: DropLedger) -> Recovery:
    """Examine a partition; the only change made is to finish a removal that a crash interrupted.

    Only an incomplete or invalid last frame of the last segment is to be cut off. Damage before it
    stays, and a new segment is begun behind it, so that it never looks like a torn end later. No
    offset that a cursor has passed is given out again, even if a power loss took the record.

    Args:
        path: The partition's folder.
        partition: Partition name.
        ledger: What was removed before.

    Raises:
        OSError: The file system refused to remove a segment.
        BatchLogReadError: The log cannot be read.
    """
    segments = list_segments(path)
    while len(segments) > 1 and segments[1].base_offset <= ledger.first_offset:
        segments.pop(0).path.unlink(missing_ok=True)
    passed = max([ledger.first_offset, *cursor_offsets(path).values()])
    if not segments:
        active = Segment(passed, segment_path(path, passed))
        return Recovery(passed, ledger.last_ring_to, (), active, 0, 0, ())
    last = segments[-1]
    tail = _examine_tail(last, partition)
    sizes = [(segment, segment.path.stat().st_size) for segment in segments[:-1]]
    next_offset = max(tail.next_offset, passed)
    if tail.appendable and next_offset == tail.next_offset:
        active, active_bytes = last, tail.valid_bytes
    else:
        next_offset = max(next_offset, last.base_offset + 1)
        active, active_bytes = Segment(next_offset, segment_path(path, next_offset)), 0
        sizes.append((last, tail.valid_bytes))
    ring_to = tail.last_ring_to
    for segment, _ in reversed(sizes):
        if ring_to is not None:
            break
        ring_to = _last_ring_to(segment, partition)
    return Recovery(
        next_offset=next_offset,
        last_ring_to=ledger.last_ring_to if ring_to is None else ring_to,
        closed=tuple(sizes),
        active=active,
        active_bytes=active_bytes,
        truncated_bytes=tail.truncated_bytes,
        corrupt=tail.corrupt,
    )


def _examine_tail(segment: Segment, partition: str) -> _Tail:
    scanner = SegmentScanner(segment, partition)
    corrupt: list[CorruptRange] = []
    try:
        stop = scanner.run_to_end(corrupt)
        if stop is Stop.END:
            return _tail(scanner, scanner.offset, scanner.position, 0, tuple(corrupt))
        rest = scanner.tail_bytes()
        found = last_plausible_frame(rest, scanner.offset)
        cut_at, offset = found or (0, scanner.offset)
        return _tail(scanner, offset, scanner.position + cut_at, len(rest) - cut_at, tuple(corrupt))
    finally:
        scanner.close()


def _tail(
    scanner: SegmentScanner,
    next_offset: int,
    valid_bytes: int,
    truncated_bytes: int,
    corrupt: tuple[CorruptRange, ...],
) -> _Tail:
    return _Tail(
        next_offset=next_offset,
        last_ring_to=scanner.last_ring_to,
        valid_bytes=valid_bytes,
        truncated_bytes=truncated_bytes,
        appendable=valid_bytes == scanner.position,
        corrupt=corrupt,
    )


def _last_ring_to(segment: Segment, partition: str) -> int | None:
    scanner = SegmentScanner(segment, partition)
    try:
        scanner.run_to_end([])
        return scanner.last_ring_to
    finally:
        scanner.close()
