"""The reading side of a ring: copies whole frames out, however fast it is overwritten."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from moescope.producers.ring.errors import RingFormatError
from moescope.producers.ring.layout import (
    ALIGNMENT,
    CRC,
    CRC_AT,
    FRAME,
    FRAME_BYTES,
    GEOMETRY,
    HEADER_BYTES,
    MAGIC,
    MAX_PROFILE_BYTES,
    PROFILE_AT,
    SEGMENTS,
    VERSION,
    Closing,
    FrameHeader,
    FrameKind,
    Geometry,
    State,
)
from moescope.producers.ring.notes import Note, read_notes, write_note
from moescope.producers.ring.state import PublishedState
from moescope.producers.ring.unseen import read_reason

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.producers.ring.rows import RowShape

_ATTEMPTS_BEFORE_DAMAGED: Final = 3
_CLOSED: Final = frozenset(Closing)


class Frame(NamedTuple):
    """A frame copied out of the ring.

    Attributes:
        terms: What its writer said last before it; empty where it never said anything.
    """

    header: FrameHeader
    body: memoryview
    terms: bytes = b""

    @property
    def end(self) -> int:
        """Ring position after the frame."""
        return self.header.position + self.header.length


class RingReader:
    """The one reader of a ring, which can neither stop nor slow its writer.

    What the writer tells in words without a checksum is looked at: where a property or method
    finds that a word cannot be true, it raises RingFormatError.

    Args:
        path: The ring file.
        is_looking: Whether it is only looked at: then there are no notes to leave, and the file
            may belong to another user.

    Attributes:
        position: Where the next frame is expected; may be set to the end of an earlier frame,
            once a reader has read from that segment's start to there.
        damaged: Places where no valid frame was found: a power loss, never a killed engine.
        terms: What holds at the position, as far as it was read.

    Raises:
        RingFormatError: The file is no ring that this release can read.
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, *, is_looking: bool = False) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY if is_looking else os.O_RDWR)
        access = mmap.PROT_READ if is_looking else mmap.PROT_READ | mmap.PROT_WRITE
        try:
            self._open(os.fstat(self._file).st_size, access)
        except RingFormatError:
            os.close(self._file)
            raise
        self.position = 0
        self.damaged = 0
        self.terms = b""
        self._terms_number = 0
        self._attempts = 0

    @property
    def head(self) -> int:
        """Position after the last whole frame."""
        return self._words[State.HEAD]

    @property
    def total_rows(self) -> int:
        """Rows in all frames that were ever written."""
        return self._state.count(State.ROWS)

    @property
    def rejected_rows(self) -> int:
        """Rows that the recorder refused so far."""
        return self._state.count(State.REJECTED)

    @property
    def unseen_rows(self) -> int:
        """Rows that the engine computed and nobody could record so far."""
        return self._state.count(State.UNSEEN)

    def unseen_by_reason(self) -> tuple[int, ...]:
        """The same by slot of the reason, and last those without one."""
        return self._state.unseen_by_reason()

    def rows_behind(self, position: int, rows: int, shape: RowShape) -> int:
        """Rows in the frames from a position on, before which there are that many."""
        return self._state.rows_behind(position, rows, shape)

    def check(self, shape: RowShape) -> None:
        """Look at all that the writer tells.

        Raises:
            RingFormatError: Some of it cannot be true.
        """
        self._state.check(self.position, shape)

    def damage(self, why: str) -> RingFormatError:
        """The error that says that this ring is damaged."""
        return self._state.damage(why)

    def unseen_reason(self, slot: int) -> str:
        """What the rows of a slot are unseen for; may be empty."""
        return read_reason(self._header, slot)

    @property
    def inherited_rows(self) -> int:
        """Rows of older rings that the recorder removed unread when it started."""
        return self._state.count(State.INHERITED)

    @property
    def has_ended(self) -> bool:
        """Whether no frame will follow: the writer closed the ring, or it is gone."""
        return self._words[State.CLOSED] in _CLOSED or not is_locked(self._file)

    @property
    def is_complete(self) -> bool:
        """Whether the writer's program said that it was done."""
        return self._words[State.CLOSED] == Closing.COMPLETE

    def is_quiet(self) -> bool:
        """Whether everything is read and no call of a living writer is half done.

        A row that is recorded after this was true is stamped no earlier than a clock that was
        read before the question.
        """
        busy = self._words[State.BUSY] % 2 == 1 and not self.has_ended
        return not busy and self.position >= self._words[State.HEAD]

    def segment_start_before(self, position: int, segments: int) -> int | None:
        """Start of a segment that lies that many segments before a position.

        Returns:
            The nearest readable one, or None if the position itself is overwritten.
        """
        tail = self._words[State.TAIL]
        if position < tail:
            return None
        size = self.geometry.segment_bytes
        return max(tail, (position // size - segments) * size, 0)

    def read(self) -> Frame | None:
        """The next frame, or None when there is none (yet).

        Frames that were overwritten before they could be read are passed over: the next frame's
        `rows_before` tells how many rows they had.
        """
        while True:
            self.position = max(self.position, self._words[State.TAIL])
            if self.position >= self._words[State.HEAD]:
                return None
            left = self.geometry.left_in_segment(self.position)
            if left < FRAME_BYTES:
                self.position += left
                continue
            frame = self._copy(left)
            if self._words[State.TAIL] > self.position:
                continue  # lapped while copying
            if frame is None:
                if not self._give_up():
                    return None
                continue
            self._attempts = 0
            if frame.header.kind == FrameKind.PAD:
                self.position += left
                continue
            if frame.header.kind == FrameKind.TERMS:
                self.terms = bytes(frame.body[: frame.header.runs_bytes])
                self._terms_number = frame.header.terms
                self.position = frame.end
                continue
            if frame.header.terms != self._terms_number:
                self._skip_segment(left)  # its terms are lost: they follow in the next one
                continue
            self.position = frame.end
            return frame

    def note(self, note: Note) -> None:
        """Leave a note for the reader after this one."""
        write_note(self._header, note)

    def notes(self) -> list[Note]:
        """The notes of earlier readers, oldest first."""
        return read_notes(self._header)

    def close(self) -> None:
        """Let go of the ring."""
        with contextlib.suppress(BufferError):
            self._words.release()
            self._header.release()
            self._buffer.release()
            self._map.close()
        os.close(self._file)

    def _open(self, size: int, access: int) -> None:
        if size < HEADER_BYTES:
            raise _no_ring(self.path, f"It has only {size} bytes.")
        self._map = mmap.mmap(self._file, size, flags=mmap.MAP_SHARED, prot=access)
        self._buffer = memoryview(self._map)
        self._header = self._buffer[:HEADER_BYTES]
        self._words = self._header.cast("Q")
        (
            magic, version, profile_bytes, self.incarnation, capacity, segment_bytes,
            self.created_at_us, profile_crc, self.writer_pid,
        ) = GEOMETRY.unpack_from(self._header)  # fmt: skip
        if magic != MAGIC:
            raise _no_ring(self.path, "It does not begin like a ring.")
        if version != VERSION:
            raise _no_ring(self.path, f"It has version {version}, this release reads {VERSION}.")
        if capacity != size - HEADER_BYTES or capacity != segment_bytes * SEGMENTS:
            raise _no_ring(self.path, "Its length does not fit its header.")
        self.geometry = Geometry(capacity, segment_bytes)
        self._state = PublishedState(self.path, self._words, self.geometry)
        profile = b""
        if profile_bytes <= MAX_PROFILE_BYTES:
            profile = bytes(self._header[PROFILE_AT : PROFILE_AT + profile_bytes])
        if crc32c(profile) != profile_crc:
            raise _no_ring(self.path, "The producer's description in it is damaged.")
        self.profile = profile

    def _copy(self, left: int) -> Frame | None:
        place = self.geometry.place(self.position)
        header = FrameHeader(*FRAME.unpack_from(self._buffer, place))
        if header.position != self.position or not FRAME_BYTES <= header.length <= left:
            return None
        if header.length % ALIGNMENT and header.kind != FrameKind.PAD:
            return None
        length = FRAME_BYTES if header.kind == FrameKind.PAD else header.length
        copied = bytearray(self._buffer[place : place + length])
        CRC.pack_into(copied, CRC_AT, 0)
        if crc32c(copied) != header.crc:
            return None
        return Frame(header, memoryview(copied)[FRAME_BYTES:], self.terms)

    def _give_up(self) -> bool:
        """Skip a place that stays unreadable; a write may still be on its way to this core."""
        self._attempts += 1
        if self._attempts < _ATTEMPTS_BEFORE_DAMAGED:
            return False
        self._attempts = 0
        self._skip_segment(self.geometry.left_in_segment(self.position))
        return True

    def _skip_segment(self, left: int) -> None:
        self.damaged += 1
        self.position = min(self.position + left, self._words[State.HEAD])


def is_locked(file: int) -> bool:
    """Whether another open description of the file holds its lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _no_ring(path: Path, why: str) -> RingFormatError:
    return RingFormatError(
        f"{path.name} is not a ring that can be read.",
        why=why,
        next_step="Use the release of moescope that wrote it, or remove the file.",
    )
