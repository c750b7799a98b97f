"""What of the deltas topic cannot be applied: all of it is counted, so much a minute kept whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.core.emission import DeadLetter, DeadLetterCount

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.core.clock import Clock

GAP: Final = "deltas_gap"
DAMAGED: Final = "damaged_emission"
TELL_SECONDS: Final = 60.0
_MINUTE_US: Final = 60_000_000


class SetAside:
    """Collects dead letters of the deltas topic between two commits.

    A minute is one of append time, as in partitions of routing batches. How many of it were kept
    is forgotten when the process ends: a restart may keep a few more.

    Args:
        partition: Of the topic.
        kept_per_minute: Most damaged records of a minute that are kept whole.
        clock: Its monotonic time decides when people are told again.
        log: Told of the first damaged record, then once a minute of how many more there were.
    """

    def __init__(
        self, partition: str, kept_per_minute: int, clock: Clock, log: Callable[[str], None]
    ) -> None:
        self._partition = partition
        self._kept_per_minute = kept_per_minute
        self._clock = clock
        self._log = log
        self._minute = (0, 0)
        self._letters: list[DeadLetter] = []
        self._counts: dict[str, list[int]] = {}
        self._told_at = float("-inf")
        self._untold = 0

    def __bool__(self) -> bool:
        """Whether something waits to be committed."""
        return bool(self._counts)

    def put(self, offset: int, append_time_us: int, detail: str, payload: bytes) -> None:
        """Take a record that cannot be used."""
        minute, kept = append_time_us // _MINUTE_US, 0
        if minute == self._minute[0]:
            kept = self._minute[1]
        is_kept = kept < self._kept_per_minute
        self._minute = (minute, kept + is_kept)
        self._count(DAMAGED, records=1, kept=is_kept, record_bytes=len(payload))
        if is_kept:
            self._keep(offset, append_time_us, DAMAGED, detail, payload)
        self._untold += 1
        if self._untold == 1 and self._may_tell():
            self._told_at = self._clock.monotonic()
            self._untold = 0
            self._log(f"record {offset} of {self._partition} is set aside: {detail}")

    def put_gap(self, first: int, end: int) -> None:
        """Take records that were gone before they were read: from `first` up to (excluding) `end`.

        What stands for them is always kept.
        """
        detail = f"records {first} to {end - 1} were gone before they were read"
        self._log(f"{self._partition}: {detail}; what processors committed there is lost")
        self._count(GAP, records=end - first, kept=1, record_bytes=0)
        self._keep(first, self._clock.now_us(), GAP, detail, b"")

    def tell(self) -> None:
        """Say how many more there were, once a minute."""
        if self._untold and self._may_tell():
            self._log(f"{self._untold:,} more records of {self._partition} were set aside")
            self._told_at = self._clock.monotonic()
            self._untold = 0

    def take(self) -> tuple[tuple[DeadLetter, ...], tuple[DeadLetterCount, ...]]:
        """What came since the last call: the letters kept, and the increments per reason."""
        counts = tuple(
            DeadLetterCount(
                partition=self._partition,
                reason=reason,
                records=records,
                kept=kept,
                record_bytes=record_bytes,
            )
            for reason, (records, kept, record_bytes) in sorted(self._counts.items())
        )
        letters = tuple(self._letters)
        self._letters, self._counts = [], {}
        return letters, counts

    def _may_tell(self) -> bool:
        return self._clock.monotonic() - self._told_at >= TELL_SECONDS

    def _count(self, reason: str, *, records: int, kept: int, record_bytes: int) -> None:
        counts = self._counts.setdefault(reason, [0, 0, 0])
        for place, increment in enumerate((records, kept, record_bytes)):
            counts[place] += increment

    def _keep(
        self, offset: int, append_time_us: int, reason: str, detail: str, payload: bytes
    ) -> None:
        self._letters.append(
            DeadLetter(
                partition=self._partition,
                offset=offset,
                append_time_us=append_time_us,
                reason=reason,
                detail=detail,
                payload=payload,
            )
        )
