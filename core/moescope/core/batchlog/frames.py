"""The frame: how one record is laid out in a segment (docs/reference/batch-log-format.md)."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

MAGIC: Final = b"\xf5MBL"
FRAME_VERSION: Final = 1
MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
"""No frame of this format version is longer, whatever a writer is configured to accept."""

MAX_U64: Final = 2**64 - 1

_HEADER: Final = struct.Struct("<4sIHHIQqQQ")
_CHECKED_HEADER: Final = struct.Struct("<HHIQqQQ")
HEADER_BYTES: Final = _HEADER.size
CHECKED_FROM: Final = HEADER_BYTES - _CHECKED_HEADER.size
"""Position in the frame of the first byte that the checksum covers."""

unpack_header = _HEADER.unpack_from
"""Buffer, position → magic, crc, version, flags, payload length, offset, time, ring from, to."""


class LogRecord(NamedTuple):
    """One record of a partition.

    Attributes:
        offset: Record number within the partition, from 0.
        append_time_us: Microseconds since the Unix epoch on the writer's clock, or `NO_TIME`.
        ring_from: First ring position that the record came from; 0 with `ring_to` 0 when none.
        ring_to: Ring position after the last one that the record came from.
        payload: The bytes that were appended.
    """

    offset: int
    append_time_us: int
    ring_from: int
    ring_to: int
    payload: bytes


class FrameHeader(NamedTuple):
    """The fields of a frame that looks like one, before its checksum is known to hold."""

    offset: int
    frame_bytes: int


def frame_bytes(payload_bytes: int) -> int:
    """Length in bytes of the frame that carries a payload of that many bytes."""
    return HEADER_BYTES + payload_bytes


def segment_seed(partition: str, base_offset: int) -> int:
    """Initial checksum value of every frame of one segment.

    It ties a frame to its place: bytes of another segment or partition, embedded in a payload or
    left on a recycled disk block, never pass as a frame of this one.
    """
    return int(crc32c(f"{partition}\0{base_offset:020d}".encode()))


def encode_header(
    seed: int,
    offset: int,
    append_time_us: int,
    ring: tuple[int, int],
    payload: bytes | bytearray | memoryview,
) -> bytes:
    """The header of the frame for one payload, checksum included.

    Args:
        seed: `segment_seed` of the segment that the frame is written to.
        offset: Record number.
        append_time_us: int64 microseconds, or `NO_TIME`.
        ring: (from, to) as u64.
        payload: Bytes that follow the header.

    Returns:
        `HEADER_BYTES` bytes.
    """
    length = len(payload)
    checked = _CHECKED_HEADER.pack(FRAME_VERSION, 0, length, offset, append_time_us, *ring)
    checksum = crc32c(payload, crc32c(checked, seed))
    return MAGIC + checksum.to_bytes(4, "little") + checked


def plausible_header(buffer: bytes | memoryview, at: int) -> FrameHeader | None:
    """The header at a position if its unchecked fields could be a frame's, else None."""
    if len(buffer) - at < HEADER_BYTES:
        return None
    magic, _, version, flags, length, offset, _, _, _ = unpack_header(buffer, at)
    if magic != MAGIC or version != FRAME_VERSION or flags or length > MAX_PAYLOAD_BYTES:
        return None
    return FrameHeader(offset, HEADER_BYTES + length)


def is_valid_frame(frame: bytes | memoryview, seed: int) -> bool:
    """Whether a buffer that holds exactly one frame passes its checksum."""
    header = plausible_header(frame, 0)
    if header is None or header.frame_bytes != len(frame):
        return False
    checksum = int.from_bytes(frame[len(MAGIC) : CHECKED_FROM], "little")
    return bool(crc32c(memoryview(frame)[CHECKED_FROM:], seed) == checksum)
