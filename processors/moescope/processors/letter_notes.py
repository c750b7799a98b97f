"""Dead letters told to people: the first of a storm, then silence for a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moescope.core.clock import Clock
    from moescope.core.emission import DeadLetterCount

QUIET_SECONDS = 60.0


class LetterNotes:
    """Tells of each reason at most once a minute.

    Args:
        log: Told of it.
        clock: Tells when a minute is over.
    """

    def __init__(self, log: Callable[[str], None], clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._told_at: dict[str, float] = {}

    def note(self, counts: Iterable[DeadLetterCount]) -> None:
        """Dead letters were committed."""
        now = self._clock.monotonic()
        for count in counts:
            if now - self._told_at.get(count.reason, float("-inf")) >= QUIET_SECONDS:
                self._told_at[count.reason] = now
                self._log(
                    f"dead letters of {count.partition}: {count.records} records, {count.reason}; "
                    "more for this reason are not told for a minute"
                )
