"""The time of rows that come without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moescope.core.clock import Clock

_LARGEST_STEP_US: Final = 1_000_000


class EventTimes:
    """The clock, except that small steps back are held, so that times keep their order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest_us = 0

    def now_us(self) -> int:
        """Microseconds since the Unix epoch; with the ring's lock."""
        now = self._clock.now_us()
        if 0 < self._latest_us - now < _LARGEST_STEP_US:
            return self._latest_us
        self._latest_us = now
        return now
