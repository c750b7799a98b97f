"""What of a log cannot be read, in words: a comparison of a part looks like one of the whole."""

from __future__ import annotations

from dataclasses import dataclass

from moescope.jobs.reports.words import count, counted, percent


@dataclass(slots=True)
class LogLosses:
    """Records and bytes of a side's logs.

    Attributes:
        records: Of the log, whatever became of them.
        unreadable_records: Of these damaged, or removed by the byte cap.
        removed_records: Of those removed by the byte cap.
        log_bytes: Of the log, as far as it is still there.
        unreadable_bytes: Of these, those of damaged records.
        tail_bytes: Of these, those behind the last complete record: they are damaged, or just being
            written, and nothing tells how many records they are.
    """

    records: int = 0
    unreadable_records: int = 0
    removed_records: int = 0
    log_bytes: int = 0
    unreadable_bytes: int = 0
    tail_bytes: int = 0

    @property
    def is_damaged(self) -> bool:
        """Whether something is missing that the byte cap did not remove."""
        return self.unreadable_records > self.removed_records or self.tail_bytes > 0

    def words(self, name: str) -> str:
        """What is missing of a side's log, in sentences; empty if nothing is."""
        parts = []
        if self.unreadable_records:
            damaged = self.unreadable_records - self.removed_records
            kinds = (
                (damaged, "damaged"),
                (self.removed_records, "removed by the byte cap"),
            )
            parts.append(
                f"{count(self.unreadable_records)} of {counted(self.records, 'record')} cannot be"
                f" read ({', '.join(f'{count(some)} {what}' for some, what in kinds if some)})."
            )
        if self.tail_bytes:
            parts.append(self.tail_words())
        if self.unreadable_bytes:
            parts.append(
                f"That is {percent(self.unreadable_bytes / self.log_bytes)} of the"
                f" {counted(self.log_bytes, 'byte')} that are there."
            )
        if not parts:
            return ""
        return f"The log of side {name} is not whole: {' '.join(parts)}"

    def tail_words(self) -> str:
        """Of the bytes behind the last complete record."""
        return (
            f"The last {counted(self.tail_bytes, 'byte')} hold no complete record: they are"
            " damaged, or just being written."
        )
