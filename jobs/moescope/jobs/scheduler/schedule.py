"""When a job runs: once a day at a time of day (UTC), or at a fixed interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

MINUTE_US: Final = 60_000_000
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US


@dataclass(frozen=True, slots=True)
class Daily:
    """Once a day, UTC."""

    hour: int
    minute: int

    @classmethod
    def at(cls, time_of_day: str) -> Self:
        """From text such as `03:00`."""
        hour, _, minute = time_of_day.partition(":")
        return cls(int(hour), int(minute))

    def latest(self, now_us: int) -> int:
        """The newest planned time that is not later than now (µs since the epoch).

        It names a run: whoever looks at any time of the same day gets the same answer.
        """
        offset = self.hour * HOUR_US + self.minute * MINUTE_US
        return (now_us - offset) // DAY_US * DAY_US + offset

    @property
    def interval_us(self) -> int:
        """Time between two planned times, in µs."""
        return DAY_US

    def __str__(self) -> str:
        """In words."""
        return f"daily at {self.hour:02}:{self.minute:02} UTC"


@dataclass(frozen=True, slots=True)
class Every:
    """At each multiple of an interval since the epoch."""

    seconds: int

    def latest(self, now_us: int) -> int:
        """As `Daily.latest`."""
        return now_us // self.interval_us * self.interval_us

    @property
    def interval_us(self) -> int:
        """Time between two planned times, in µs."""
        return self.seconds * 1_000_000

    def __str__(self) -> str:
        """In words."""
        return f"every {self.seconds} s"


Schedule = Daily | Every
