"""What of the deltas topic cannot be applied: all of it is counted, so much a minute kept whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from moescope.core.accounts import DeadLetter, DeadLetterCount
from moescope.core.dead_letter_reasons import DeadLetterReason
from moescope.core.emission import Emission

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.core.clock import Clock

TELL_SECONDS: Final = 60.0
_MINUTE_US: Final = 60_000_000


class _Item(NamedTuple):
    """Something that waits to be committed."""

    offset: int
    reason: str
    records: int
    record_bytes: int
    letter: DeadLetter | None


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
        self._items: list[_Item] = []
        self._told_at = float("-inf")
        self._untold = 0

    def __bool__(self) -> bool:
        """Whether something waits to be committed."""
        return bool(self._items)

    def put(self, offset: int, append_time_us: int, detail: str, payload: bytes) -> None:
        """Take a record that cannot be used."""
        minute, kept = append_time_us // _MINUTE_US, 0
        if minute == self._minute[0]:
            kept = self._minute[1]
        is_kept = kept < self._kept_per_minute
        self._minute = (minute, kept + is_kept)
        letter = None
        if is_kept:
            letter = self._letter(
                offset, append_time_us, DeadLetterReason.DAMAGED_EMISSION.value, detail, payload
            )
        self._items.append(
            _Item(offset, DeadLetterReason.DAMAGED_EMISSION.value, 1, len(payload), letter)
        )
        self._untold += 1
        if self._untold == 1 and self._may_tell():
            self._told_at = self._clock.monotonic()
            self._untold = 0
            self._log(f"record {offset} of {self._partition} is set aside: {detail}")

    def put_gap(self, first: int, end: int) -> None:
        """Take records that were gone before they were read: from `first` up to (excluding) `end`.

        Marks of transactions and records of those that failed have places there, too, and nobody
        can tell any more. What stands for them is always kept.
        """
        detail = (
            f"up to {end - first} records ({first} to {end - 1}) were gone before they were read"
        )
        self._log(f"{self._partition}: {detail}; what processors committed there is lost")
        letter = self._letter(
            first, self._clock.now_us(), DeadLetterReason.DELTAS_GAP.value, detail, b""
        )
        self._items.append(_Item(first, DeadLetterReason.DELTAS_GAP.value, end - first, 0, letter))

    def tell(self) -> None:
        """Say how many more there were, once a minute."""
        if self._untold and self._may_tell():
            self._log(f"{self._untold:,} more records of {self._partition} were set aside")
            self._told_at = self._clock.monotonic()
            self._untold = 0

    def before(self, offset: int) -> Emission:
        """What waits of the records before an offset: the letters kept, and counts per reason."""
        counts: dict[str, list[int]] = {}
        letters: list[DeadLetter] = []
        for item in self._items:
            if item.offset < offset:
                found = counts.setdefault(item.reason, [0, 0, 0])
                found[0] += item.records
                found[1] += item.letter is not None
                found[2] += item.record_bytes
                if item.letter is not None:
                    letters.append(item.letter)
        return Emission(
            progress=(),
            dead_letters=tuple(letters),
            dead_letter_counts=tuple(
                DeadLetterCount(
                    partition=self._partition,
                    reason=reason,
                    records=records,
                    kept=kept,
                    record_bytes=record_bytes,
                )
                for reason, (records, kept, record_bytes) in sorted(counts.items())
            ),
        )

    def forget_before(self, offset: int) -> None:
        """What lies before an offset is committed."""
        self._items = [item for item in self._items if item.offset >= offset]

    def _may_tell(self) -> bool:
        return self._clock.monotonic() - self._told_at >= TELL_SECONDS

    def _letter(
        self, offset: int, append_time_us: int, reason: str, detail: str, payload: bytes
    ) -> DeadLetter:
        return DeadLetter(
            partition=self._partition,
            offset=offset,
            append_time_us=append_time_us,
            reason=reason,
            detail=detail,
            payload=payload,
        )
