"""How a ring file is laid out: its header, and the header of each frame.

The header holds what never changes (geometry, incarnation, the producer's profile), the writer's
published state and the reader's notes. After it come `segments` equal segments of frames. A frame
never crosses a segment's end; a *position* is a byte count since the ring was made, so it only
grows, and position modulo capacity is the place in the file.

Each 64-bit field is written by one aligned store, and each has one writer: the writer's state
belongs to the engine, the reader's notes to the agent.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from moescope.producers.ring.errors import RingSettingsError

if TYPE_CHECKING:
    from pathlib import Path

MAGIC: Final = b"MOERING1"
VERSION: Final = 2
SEGMENTS: Final = 32
PAGE: Final = 4_096
HEADER_BYTES: Final = 16 * PAGE
"""The header and the profile: data starts here."""
PROFILE_AT: Final = PAGE
MAX_PROFILE_BYTES: Final = HEADER_BYTES - PROFILE_AT
DEFAULT_RING_BYTES: Final = 256 * 1024 * 1024
LONGEST_PLAIN_TERMS: Final = 1024
"""Of terms without a placement table: every ring has room for them."""
MAX_FRAME_BYTES: Final = 512 * 1024
"""Rows of one frame are shipped in one batch, which has to stay below 1 MiB."""

GEOMETRY: Final = struct.Struct("<8sIIQQQqII")
"""Magic, version, profile length, incarnation, capacity, segment bytes, created at (µs),
profile checksum, process id of the writer."""

NOTES_AT: Final = 512
NOTE: Final = struct.Struct("<QQQQQQII")
"""Sequence, ring position, rows, rejected rows, unseen rows, dropped batches of the log, inherited
rows reported (0 or 1), checksum of all before it."""
NOTE_SLOTS: Final = 2
NOTE_STRIDE: Final = 64

FRAME: Final = struct.Struct("<QQIIHHIIIIIqq")
"""Position, rows before it, length, checksum, kind, spare, rows, runs, columns, bytes of runs,
number of its terms, earliest and latest event time (µs)."""
FRAME_BYTES: Final = FRAME.size
CRC_AT: Final = 20
CRC: Final = struct.Struct("<I")
ALIGNMENT: Final = 8

MOST_ROWS: Final = 2**40
"""No count of rows is larger: where one is, it is damaged."""

RING_SUFFIX: Final = ".ring"
UNFINISHED_SUFFIX: Final = ".ring.new"
DAMAGED_SUFFIX: Final = ".ring.damaged"


class State(enum.IntEnum):
    """Fields that the writer publishes: index into the header seen as 64-bit words.

    `TAIL`: positions below it are overwritten, or about to be. `HEAD`: positions below it are
    complete. `ROWS`: rows in all frames below the head. `BUSY`: odd while a call is writing.
    `CLOSED`: a member of `Closing`. `INHERITED`: rows of older rings that this writer removed
    unread. `UNSEEN`: rows that the engine computed and nobody could record.
    """

    TAIL = 32
    HEAD = 33
    ROWS = 34
    REJECTED = 35
    BUSY = 36
    CLOSED = 37
    INHERITED = 38
    UNSEEN = 39


class Closing(enum.IntEnum):
    """How a writer let go of its ring.

    `LEFT`: its process ended, or an error ended what it recorded. `COMPLETE`: its program said that
    it was done, so that nothing it began is half told.
    """

    LEFT = 1
    COMPLETE = 2


class FrameKind(enum.IntEnum):
    """What a frame holds.

    `TERMS`: what holds for the frames behind it until the next of its kind. Once there has been
    one, each segment starts with one, so that a reader knows them wherever it has to go on.
    """

    PAD = 1
    ROWS = 2
    END = 3
    TERMS = 4


class FrameHeader(NamedTuple):
    """The fields of a frame's header, in the order of `FRAME`.

    `terms` is the number of the terms that hold for the frame: 0 before the first ones.
    """

    position: int
    rows_before: int
    length: int
    crc: int
    kind: int
    spare: int
    rows: int
    runs: int
    columns: int
    runs_bytes: int
    terms: int
    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a ring's data area, in bytes.

    Attributes:
        longest_row_frame: What the frame of a single row may need.
    """

    capacity: int
    segment_bytes: int
    longest_row_frame: int = 0

    @classmethod
    def for_size(cls, ring_bytes: int, longest_row_frame: int) -> Geometry:
        """The largest layout within a size.

        Raises:
            RingSettingsError: A segment would not hold the frame of a single row.
        """
        smallest_segment = longest_row_frame + LONGEST_PLAIN_TERMS + FRAME_BYTES
        segment = ring_bytes // SEGMENTS // PAGE * PAGE
        if segment < smallest_segment:
            needed = -(-smallest_segment // PAGE) * PAGE * SEGMENTS
            raise RingSettingsError(
                f"A ring of {ring_bytes} bytes is too small.",
                why=f"One token of this model needs up to {smallest_segment} bytes in each of "
                f"{SEGMENTS} segments.",
                next_step=f"Set ring_bytes to {needed} or more.",
            )
        return cls(segment * SEGMENTS, segment, longest_row_frame)

    @property
    def max_frame_bytes(self) -> int:
        """Frames are kept this short, unless a single row is longer."""
        return min(self.segment_bytes // 4, MAX_FRAME_BYTES)

    @property
    def max_terms_bytes(self) -> int:
        """Terms take at most half of a segment, and leave room for any frame."""
        longest = max(self.max_frame_bytes, self.longest_row_frame)
        return min(self.segment_bytes // 2, self.segment_bytes - longest) - FRAME_BYTES

    def left_in_segment(self, position: int) -> int:
        """Bytes from a position to the end of its segment."""
        return self.segment_bytes - position % self.segment_bytes

    def place(self, position: int) -> int:
        """Place of a position in the file."""
        return HEADER_BYTES + position % self.capacity


def aligned(size: int) -> int:
    """The size, rounded up so that the next frame or column starts aligned."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def ring_path(directory: Path, incarnation: int) -> Path:
    """Where the ring of an incarnation lies."""
    return directory / f"ring-{incarnation:016x}{RING_SUFFIX}"
