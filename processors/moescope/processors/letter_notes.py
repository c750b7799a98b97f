"""Dead letters told to people: the first of a storm at once, the others once a minute."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moescope.core.accounts import DeadLetterCount
    from moescope.core.clock import Clock

QUIET_SECONDS: Final = 60.0


class LetterNotes:
    """Tells of each reason at most once a minute, of every record and partition.

    One object belongs to one thread.

    Args:
        log: Told of it.
        clock: Tells when a minute is over.
    """

    def __init__(self, log: Callable[[str], None], clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._told_at: dict[str, float] = {}
        self._untold: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def note(self, counts: Iterable[DeadLetterCount]) -> None:
        """Dead letters were committed."""
        self.look()
        for count in counts:
            self._untold[count.reason][count.partition] += count.records
        for reason in self._untold.keys() - self._told_at.keys():
            records = self._tell(reason)
            self._log(f"dead letters, {reason}: {records}; others are told once a minute")

    def look(self) -> None:
        """Sum up what came in the minutes that are over."""
        now = self._clock.monotonic()
        for reason, told_at in list(self._told_at.items()):
            if now - told_at >= QUIET_SECONDS:
                self._sum_up(reason)

    def end(self) -> None:
        """Sum up what was not told yet."""
        for reason in list(self._told_at):
            self._sum_up(reason)

    def _sum_up(self, reason: str) -> None:
        seconds = self._clock.monotonic() - self._told_at.pop(reason)
        if self._untold[reason]:
            records = self._tell(reason)
            self._log(f"dead letters, {reason}: {records} more in the last {seconds:.0f} s")
        else:
            del self._untold[reason]

    def _tell(self, reason: str) -> str:
        self._told_at[reason] = self._clock.monotonic()
        partitions = self._untold.pop(reason)
        places = ", ".join(f"{name} {records}" for name, records in sorted(partitions.items()))
        number = partitions.total()
        return f"{number} record{'s' * (number != 1)} ({places})"
