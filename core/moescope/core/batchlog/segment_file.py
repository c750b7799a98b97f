"""The segment that a writer appends to: whole frames or nothing."""

from __future__ import annotations

import contextlib
import os
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from moescope.core.batchlog.frames import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.core.batchlog.partition import Segment

Payload = bytes | bytearray | memoryview

MAX_FRAMES_PER_WRITE = 500  # two buffers each, below the 1,024 that POSIX systems take at once


class Frame(NamedTuple):
    """An encoded header and the payload that follows it."""

    header: bytes
    payload: Payload

    @property
    def size(self) -> int:
        """Bytes that the frame takes in a segment."""
        return HEADER_BYTES + len(self.payload)


class Written(NamedTuple):
    """How far a write came, and what stopped it."""

    frames: int
    error: OSError | None


class SegmentFile:
    """An open segment; writes go to known positions, so a failed one leaves nothing behind.

    Args:
        segment: The segment; created if it does not exist.
        size: Bytes of it that are valid; what lies behind is cut off.

    Raises:
        OSError: The file system refused.
    """

    def __init__(self, segment: Segment, size: int = 0) -> None:
        self.segment = segment
        self.size = size
        self._file = os.open(segment.path, os.O_RDWR | os.O_CREAT, 0o644)
        self._rest_to_cut = True
        try:
            self._cut()
        except OSError:
            os.close(self._file)
            raise

    def write(self, frames: Sequence[Frame]) -> Written:
        """Append frames; those that did not fit completely are cut off again.

        Returns:
            The number of complete frames, and the error that prevented the rest.
        """
        ends = list(accumulate(frame.size for frame in frames))
        written, error = self._write_bytes(frames, ends[-1] if ends else 0)
        complete = sum(end <= written for end in ends)
        self.size += ends[complete - 1] if complete else 0
        if error is not None:
            with contextlib.suppress(OSError):  # tried again before the next write
                self._cut()
        return Written(complete, error)

    def sync(self) -> None:
        """Wait until the disk has everything.

        Raises:
            OSError: The disk did not confirm.
        """
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write_bytes(self, frames: Sequence[Frame], total: int) -> tuple[int, OSError | None]:
        written = 0
        buffers: list[Payload] = [part for frame in frames for part in frame]
        try:
            self._cut()
            self._rest_to_cut = True  # until all is written, whatever interrupts it
            while written < total:
                count = os.pwritev(self._file, buffers, self.size + written)
                written += count
                buffers = _without_first(buffers, count)
        except OSError as error:
            return written, error
        self._rest_to_cut = False
        return written, None

    def _cut(self) -> None:
        if self._rest_to_cut:
            if os.fstat(self._file).st_size != self.size:
                os.ftruncate(self._file, self.size)
            self._rest_to_cut = False


def _without_first(buffers: list[Payload], count: int) -> list[Payload]:
    rest = list(buffers)
    while rest and count >= len(rest[0]):
        count -= len(rest.pop(0))
    if count:
        rest[0] = memoryview(rest[0])[count:]
    return rest
