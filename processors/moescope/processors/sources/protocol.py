"""What the processor needs from a source of records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from moescope.core.clock import NO_TIME

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """One record of a partition.

    Attributes:
        append_time_us: When the batch was logged; `NO_TIME` where the log has no clock.
        arrival_us: When it got here from where it was logged; `NO_TIME` where that is the same
            place. Batches that waited for a broker arrive long after they were logged, and those
            of one node before those of another.
    """

    offset: int
    append_time_us: int
    payload: bytes
    arrival_us: int = NO_TIME


@dataclass(frozen=True, slots=True)
class SourceGap:
    """Offsets that will never be read, from `first` up to (excluding) `end`.

    Attributes:
        is_beginning: The log begins behind it: no loss to who has never processed any of it.
    """

    first: int
    end: int
    reason: str
    payload: bytes = b""
    is_beginning: bool = False


@dataclass(frozen=True, slots=True)
class Poll:
    """What one read gave. `exhausted`: the partition holds nothing more now; `sealed`: nor ever."""

    records: Sequence[SourceRecord]
    gaps: Sequence[SourceGap]
    next_offset: int
    exhausted: bool
    sealed: bool


class Source(Protocol):
    """Partitions of records that can be read from any offset."""

    def partitions(self) -> dict[str, str]:
        """Name → watermark domain of every partition that exists now."""
        ...

    def log_id(self, partition: str, known: str) -> str:
        """What tells the log of a partition from another of the same name.

        Args:
            partition: One that the source gives.
            known: What was said when its records were processed; empty: nothing was.

        Returns:
            What is to be kept with the progress; empty where logs have no such thing.

        Raises:
            LogRewoundError: It is another log now.
        """
        ...

    def poll(self, partition: str, offset: int, max_records: int, max_bytes: int) -> Poll:
        """Read from an offset on."""
        ...

    def committed(self, partition: str, replay_from: int) -> None:
        """Learn that nothing below `replay_from` will be read again."""
        ...

    def revoked(self) -> Collection[str]:
        """Partitions that were taken away since the last call, even if they are back already.

        What is in memory of them is no longer valid.
        """
        ...

    def claim(self) -> object:
        """What proves that the partitions are ours now; None where nobody else can have them.

        Taken before `revoked` is asked: a claim that is older than a change is refused.
        """
        ...

    def unread(self, held: Collection[str]) -> frozenset[str]:
        """Partitions that are late because nobody read them, not because they are silent.

        Args:
            held: Partitions of which records were handed out that are not processed yet.
        """
        ...

    def settled(self) -> bool:
        """Whether what was handed out is all that there is now."""
        ...
