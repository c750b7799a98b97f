"""Time, injected wherever it is needed so that tests and simulations control it."""

from __future__ import annotations

import time
from typing import Protocol

NO_TIME = -(2**63)
"""Stands for "no event time" in int64 microsecond columns."""

END_OF_TIME = 2**63 - 1
"""The watermark of a sealed batch log: nothing follows."""


class Clock(Protocol):
    """Wall-clock and monotonic time."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for that many seconds of this clock."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for that many seconds."""
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when it is told to: for tests and simulated fleets."""

    def __init__(self, now_us: int = 0) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        """Microseconds since the Unix epoch, as last set."""
        return self._now_us

    def monotonic(self) -> float:
        """The same time in seconds."""
        return self._now_us / 1e6

    def sleep(self, seconds: float) -> None:
        """Move the clock forward instead of waiting."""
        self._now_us += round(seconds * 1e6)

    def set_us(self, now_us: int) -> None:
        """Set the time, forwards or backwards."""
        self._now_us = now_us
