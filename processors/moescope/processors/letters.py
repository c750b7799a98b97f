"""Dead letters of one partition: all are counted, so many a minute are kept whole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from moescope.core.accounts import DeadLetter, DeadLetterCount

if TYPE_CHECKING:
    from collections.abc import Sequence

_MINUTE_US: Final = 60_000_000
REMEMBERED_MINUTES: Final = 64
"""Agents that deliver old backlogs beside live ones append in several minutes by turns."""


class LetterBox:
    """Collects a partition's dead letters between two commits.

    How many of a minute were kept is part of the partition's saved state, and depends on its
    records alone: restarts, kills and replays count nothing twice.

    Args:
        partition: Its name.
        kept_per_minute: Most letters that are kept whole per minute of append time.
    """

    def __init__(self, partition: str, kept_per_minute: int) -> None:
        self._partition = partition
        self._kept_per_minute = kept_per_minute
        # In the order of last use.
        self._kept: dict[int, int] = {}
        self._letters: list[DeadLetter] = []
        self._counts: dict[str, list[int]] = {}

    def put(self, letter: DeadLetter, time_us: int) -> None:
        """Count a record that could not be used, and keep it while its minute has room.

        Args:
            letter: The record.
            time_us: What minute it belongs to; `NO_TIME`: all of them are one minute.
        """
        minute = time_us // _MINUTE_US
        kept = self._kept.pop(minute, 0)
        is_kept = kept < self._kept_per_minute
        self._kept[minute] = kept + is_kept
        if len(self._kept) > REMEMBERED_MINUTES:
            del self._kept[next(iter(self._kept))]
        self._add(letter, records=1, is_kept=is_kept)

    def put_gap(self, letter: DeadLetter, records: int) -> None:
        """Count records that are gone, and keep the letter that says so: always."""
        self._add(letter, records=records, is_kept=True)

    def put_loss(self, letter: DeadLetter) -> None:
        """Keep a letter about something that is lost and is no record."""
        self._add(letter, records=0, is_kept=True)

    def take(self) -> tuple[list[DeadLetter], list[DeadLetterCount]]:
        """What came since the last call: the letters kept, and the increments per reason."""
        letters, self._letters = self._letters, []
        counts = [
            DeadLetterCount(
                partition=self._partition,
                reason=reason,
                records=records,
                kept=kept,
                record_bytes=record_bytes,
            )
            for reason, (records, kept, record_bytes) in sorted(self._counts.items())
        ]
        self._counts = {}
        return letters, counts

    def state(self) -> list[Any]:
        """JSON-able state."""
        return [[minute, kept] for minute, kept in self._kept.items()]

    def restore(self, state: Sequence[tuple[int, int]]) -> None:
        """Take over a saved state."""
        self._kept = dict(state)

    def _add(self, letter: DeadLetter, *, records: int, is_kept: bool) -> None:
        # What was lost before a record can be told at the record's own place only.
        is_joined = is_kept and bool(self._letters) and self._letters[-1].offset == letter.offset
        counts = self._counts.setdefault(letter.reason, [0, 0, 0])
        counts[0] += records
        counts[1] += is_kept and not is_joined
        counts[2] += len(letter.payload)
        if is_joined:
            before = self._letters.pop()
            letter = replace(
                letter, reason=before.reason, detail=f"{before.detail} {letter.detail}"
            )
        if is_kept:
            self._letters.append(letter)
