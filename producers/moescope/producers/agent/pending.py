"""The frames that wait for their batch to be closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.producers.ring.layout import FrameKind
from moescope.producers.ring.rows import column_mask

if TYPE_CHECKING:
    from moescope.producers.ring.reader import Frame

_EVENT_TIME: Final = column_mask({"event_time_us": None})


class PendingFrames:
    """Consecutive frames of one ring that fit into one batch.

    Args:
        span_us: Event time that a batch spans at most.
        raw_bytes: Bytes of frames that are expected to fill a batch.
    """

    def __init__(self, span_us: int, raw_bytes: int) -> None:
        self.frames: list[Frame] = []
        self.since = 0.0
        self.raw_bytes = raw_bytes
        self._span_us = span_us
        self._bytes = 0
        self._columns: int | None = None
        self._first_us: int | None = None
        self._last_us = 0

    def accepts(self, frame: Frame) -> bool:
        """Whether a frame may go into the same batch as those that wait."""
        header = frame.header
        if self.frames and self.frames[-1].header.terms != header.terms:
            return False
        if self._bytes and self._bytes + header.length > self.raw_bytes:
            return False
        if header.kind != FrameKind.ROWS or self._first_us is None:
            return True
        span_us = max(self._last_us, header.last_us) - min(self._first_us, header.first_us)
        return span_us <= self._span_us and self._columns == header.columns & ~_EVENT_TIME

    def add(self, frame: Frame, now: float) -> None:
        """Let a frame wait; `now` is the monotonic clock."""
        header = frame.header
        if not self.frames:
            self.since = now
        self.frames.append(frame)
        self._bytes += header.length
        if header.kind == FrameKind.ROWS:
            if self._first_us is None:
                self._first_us, self._last_us = header.first_us, header.last_us
            self._first_us = min(self._first_us, header.first_us)
            self._last_us = max(self._last_us, header.last_us)
            self._columns = header.columns & ~_EVENT_TIME

    def take(self) -> list[Frame]:
        """The frames, in ring order; nothing waits any more."""
        frames = self.frames
        self.frames = []
        self._bytes = 0
        self._columns = self._first_us = None
        return frames
