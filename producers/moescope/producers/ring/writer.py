"""The writing side of a ring: one process, one call at a time, never waiting for a reader."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from moescope.producers.ring.errors import RingCreateError, RingSettingsError
from moescope.producers.ring.layout import (
    CRC,
    CRC_AT,
    FRAME,
    FRAME_BYTES,
    GEOMETRY,
    HEADER_BYTES,
    MAGIC,
    MAX_PROFILE_BYTES,
    MOST_ROWS,
    PROFILE_AT,
    UNFINISHED_SUFFIX,
    VERSION,
    Closing,
    FrameKind,
    Geometry,
    State,
    aligned,
    ring_path,
)
from moescope.producers.ring.unseen import count_word, reason_slot, write_reason

if TYPE_CHECKING:
    from pathlib import Path

# Plain numbers: looking a member of an enum up takes a good part of the time of a store.
_TAIL: Final = int(State.TAIL)
_HEAD: Final = int(State.HEAD)
_ROWS: Final = int(State.ROWS)
_BUSY: Final = int(State.BUSY)
_MAP_FLAGS: Final = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


class RingWriter:
    """A new ring file, mapped into memory, with this process as its only writer.

    Not thread-safe: the caller serialises. The file is wholly allocated and its pages are
    mapped before the constructor returns, so that a full disk shows here and never later.

    Args:
        directory: Existing folder of the ring.
        incarnation: Boot id, unsigned 64 bits, never used before in the folder.
        profile: What the agent has to know about the producer; opaque here.
        geometry: Sizes.
        created_at_us: The producer's clock.
        inherited_rows: Rows of older rings that were removed unread.

    Raises:
        RingCreateError: The file system refused.
        RingSettingsError: The profile is too long.
    """

    def __init__(
        self,
        directory: Path,
        incarnation: int,
        profile: bytes,
        geometry: Geometry,
        *,
        created_at_us: int,
        inherited_rows: int = 0,
    ) -> None:
        if len(profile) > MAX_PROFILE_BYTES:
            raise RingSettingsError(
                f"The producer's description takes {len(profile)} bytes.",
                why=f"A ring's header has room for {MAX_PROFILE_BYTES}.",
                next_step="Use fewer or shorter labels.",
            )
        self.path = ring_path(directory, incarnation)
        self.geometry = geometry
        unfinished = directory / f"ring-{incarnation:016x}{UNFINISHED_SUFFIX}"
        try:
            self._map, self._lock_fd = _allocate(unfinished, HEADER_BYTES + geometry.capacity)
            self.buffer = memoryview(self._map)
            self._words = self.buffer[:HEADER_BYTES].cast("Q")
            GEOMETRY.pack_into(
                self.buffer, 0, MAGIC, VERSION, len(profile), incarnation, geometry.capacity,
                geometry.segment_bytes, created_at_us, crc32c(profile), os.getpid(),
            )  # fmt: skip
            self.buffer[PROFILE_AT : PROFILE_AT + len(profile)] = profile
            self._words[State.INHERITED] = min(inherited_rows, MOST_ROWS)
            unfinished.rename(self.path)  # an agent only ever sees whole, locked rings
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise RingCreateError(
                f"Could not make a ring of {geometry.capacity} bytes in {directory}.",
                why=error.strerror or str(error),
                next_step="Free space or memory there, set a smaller ring_bytes, or another "
                "directory.",
            ) from error
        self._tail = 0
        self._head = 0
        self._rows = 0
        self._rejected = 0
        self._busy = 0
        self._unseen = 0
        self._reasons: dict[str, int] = {}
        self._terms = b""
        self._terms_number = 0
        self._has_new_terms = False
        self._place = HEADER_BYTES
        self._capacity = geometry.capacity
        self._segment_bytes = geometry.segment_bytes

    @property
    def rows(self) -> int:
        """Rows in all frames so far."""
        return self._rows

    @property
    def rejected(self) -> int:
        """Rows that `reject` counted so far."""
        return self._rejected

    @property
    def unseen(self) -> int:
        """Rows that `miss` counted so far."""
        return self._unseen

    @property
    def head(self) -> int:
        """Position after the last frame."""
        return self._head

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name any more, so that no agent can find it."""
        if self._lock_fd < 0:
            return False
        try:
            return os.fstat(self._lock_fd).st_nlink == 0
        except OSError:  # closed a moment ago
            return False

    def enter(self) -> None:
        """Tell the reader that rows stamped with a time from now on may follow."""
        self._busy |= 1
        self._words[_BUSY] = self._busy

    def leave(self) -> None:
        """Tell the reader that every row so far is published."""
        self._busy += self._busy & 1
        self._words[_BUSY] = self._busy

    def reject(self, rows: int) -> None:
        """Count rows that were refused; the count ends at `MOST_ROWS`."""
        self._rejected = min(self._rejected + rows, MOST_ROWS)
        self._words[State.REJECTED] = self._rejected

    def miss(self, rows: int, reason: str) -> None:
        """Count rows that nobody could record; the count ends at `MOST_ROWS`."""
        rows = min(rows, MOST_ROWS - self._unseen)
        slot, name = reason_slot(self._reasons, reason)
        if name not in self._reasons:
            write_reason(self.buffer, slot, name)
            self._reasons[name] = slot
        self._words[count_word(slot)] += rows
        self._unseen += rows
        self._words[State.UNSEEN] = self._unseen

    def change_terms(self, terms: bytes) -> None:
        """Let other terms hold for all frames from the next one on; opaque here.

        They are written before the next frame, and again at the start of each segment.

        Raises:
            ValueError: They would leave too little room for frames; nothing has changed.
        """
        if len(terms) > self.geometry.max_terms_bytes:
            raise ValueError(f"terms of {len(terms)} bytes, over {self.geometry.max_terms_bytes}")
        self._terms = terms
        self._terms_number += 1
        self._has_new_terms = True

    def reserve(self, body_bytes: int) -> int:
        """Make room for a frame, overwriting the oldest segment if needed.

        Until `publish`, nothing is visible, and the next `reserve` gives the same room again.

        Returns:
            Place in `buffer` where the body starts.
        """
        segment = self._segment_bytes
        left = segment - self._head % segment
        needed = FRAME_BYTES + aligned(body_bytes)
        if needed > left or self._has_new_terms or (left == segment and self._terms):
            self._make_way(needed, left)
        self._enter_segment()
        self._place = self.geometry.place(self._head)
        return self._place + FRAME_BYTES

    def publish(
        self,
        kind: FrameKind,
        body_bytes: int,
        *,
        rows: int = 0,
        runs: int = 0,
        columns: int = 0,
        runs_bytes: int = 0,
        first_us: int,
        last_us: int,
    ) -> None:
        """Make the frame whose body was written after `reserve` visible to the reader."""
        length = FRAME_BYTES + aligned(body_bytes)
        place = self._place
        buffer = self.buffer
        FRAME.pack_into(
            buffer, place, self._head, self._rows, length, 0, kind, 0, rows, runs, columns,
            runs_bytes, self._terms_number, first_us, last_us,
        )  # fmt: skip
        CRC.pack_into(buffer, place + CRC_AT, crc32c(buffer[place : place + length]))
        self._rows += rows
        self._head += length
        self._words[_HEAD] = self._head
        self._words[_ROWS] = self._rows

    def close(self, how: Closing = Closing.LEFT) -> None:
        """Mark the ring as closed and let go of it; the file stays for the agent."""
        if self._lock_fd >= 0:
            self._words[State.CLOSED] = how
            self.abandon()

    def abandon(self) -> None:
        """Let go of the file without a word: what a forked child does with its copy."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
            with contextlib.suppress(BufferError):  # a view is in use: it ends with the process
                self._words.release()
                self.buffer.release()
                self._map.close()

    def close_lock(self) -> None:
        """Close this process's copy of the lock only: safe at any point of a fork."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _make_way(self, needed: int, left: int) -> None:
        """Go on in the next segment where need be, and write the terms where they are due."""
        length = FRAME_BYTES + aligned(len(self._terms))
        is_due = self._has_new_terms or (left == self._segment_bytes and bool(self._terms))
        if needed + (length if is_due else 0) > left:
            self._fill_segment(left)
            is_due = bool(self._terms)
        if not is_due:
            return
        self._enter_segment()
        place = self.geometry.place(self._head)
        size = len(self._terms)
        self.buffer[place + FRAME_BYTES : place + FRAME_BYTES + size] = self._terms
        FRAME.pack_into(
            self.buffer, place, self._head, self._rows, length, 0, FrameKind.TERMS, 0, 0, 0, 0,
            size, self._terms_number, 0, 0,
        )  # fmt: skip
        checksum = crc32c(self.buffer[place : place + length])
        CRC.pack_into(self.buffer, place + CRC_AT, checksum)
        self._head += length
        self._has_new_terms = False

    def _enter_segment(self) -> None:
        """Take the oldest segment back before the first byte of it is overwritten."""
        segment = self._segment_bytes
        head = self._head
        oldest = head - head % segment + segment - self._capacity
        if oldest > self._tail:
            self._tail = oldest
            self._words[_TAIL] = oldest

    def _fill_segment(self, left: int) -> None:
        if left >= FRAME_BYTES:
            place = self.geometry.place(self._head)
            FRAME.pack_into(
                self.buffer, place, self._head, self._rows, left, 0, FrameKind.PAD,
                0, 0, 0, 0, 0, 0, 0, 0,
            )  # fmt: skip
            checksum = crc32c(self.buffer[place : place + FRAME_BYTES])
            CRC.pack_into(self.buffer, place + CRC_AT, checksum)
        self._head += left
        # The next segment may still hold what a reader wants: its head is published with a frame.


def _allocate(path: Path, size: int) -> tuple[mmap.mmap, int]:
    """Create a file of that size, locked by this process, and map it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o660)
    lock = -1
    try:
        os.posix_fallocate(file, 0, size)
        # A description of its own: a forked child can close its copy, and mmap keeps none of it.
        lock = os.open(path, os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return mmap.mmap(file, size, flags=_MAP_FLAGS), lock
    except OSError:
        if lock >= 0:
            os.close(lock)
        raise
    finally:
        os.close(file)
