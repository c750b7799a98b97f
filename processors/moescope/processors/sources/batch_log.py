"""Batch logs as a source: the embedded transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.batchlog import (
    BatchLogReader,
    Cursor,
    PartitionNotFoundError,
    partition_names,
)
from moescope.core.errors import InputError
from moescope.processors.sources.protocol import Poll, SourceGap, SourceRecord

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path
    from types import TracebackType
    from typing import Self

CURSOR = "processor"


class LogRewoundError(InputError):
    """A batch log holds fewer records than were processed from it."""


class BatchLogSource:
    """All partitions below a log root; new ones appear as they are made.

    A cursor per partition stands at the committed `replay_from`, so that the byte cap removes
    first what nothing needs any more.

    Args:
        root: Log root; need not exist yet.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._readers: dict[str, BatchLogReader] = {}
        self._cursors: dict[str, Cursor] = {}

    def __enter__(self) -> Self:
        """The source itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the open segments."""
        self.close()

    def partitions(self) -> dict[str, str]:
        """Name → watermark domain of every partition that exists now."""
        for name in partition_names(self._root) if self._root.exists() else []:
            if name not in self._readers:
                try:
                    self._readers[name] = BatchLogReader(self._root, name)
                except PartitionNotFoundError:
                    # Its folder exists, its description is not written yet: next time.
                    continue
        return {name: reader.meta.domain for name, reader in self._readers.items()}

    def log_id(self, partition: str, known: str) -> str:  # noqa: ARG002 (the protocol's)
        """What is known: a log that was replaced is found by its end."""
        return known

    def poll(self, partition: str, offset: int, max_records: int, max_bytes: int) -> Poll:
        """Read from an offset on."""
        reader = self._readers[partition]
        # Asked first: what is appended after a seal was seen cannot exist.
        sealed = reader.is_sealed()
        result = reader.read(offset, max_records, max_bytes)
        gaps = [
            SourceGap(damage.offset_from, damage.offset_to, damage.reason, b"")
            for damage in result.corrupt
        ]
        if result.gap is not None:
            gaps.insert(
                0,
                SourceGap(
                    result.gap.offset_from, result.gap.offset_to, "removed by the byte cap", b""
                ),
            )
        exhausted = not result.records and not gaps
        if exhausted and offset > (end := reader.end_offset()):
            raise LogRewoundError(
                f"The batch log of {partition} ends at record {end}, but {offset} were read.",
                why="The log was removed or replaced after its records were processed.",
                next_step="Bring the log folder back, or start with an empty data directory; "
                "records of the new log would be taken for those that are stored already.",
            )
        return Poll(
            records=[
                SourceRecord(record.offset, record.append_time_us, record.payload)
                for record in result.records
            ],
            gaps=gaps,
            next_offset=result.next_offset,
            exhausted=exhausted,
            sealed=sealed and exhausted,
        )

    def committed(self, partition: str, replay_from: int) -> None:
        """Move the partition's cursor to where a restart would read from."""
        cursor = self._cursors.get(partition)
        if cursor is None:
            cursor = self._cursors[partition] = Cursor(self._root, partition, CURSOR)
        if replay_from > cursor.offset:
            cursor.advance(replay_from)

    def revoked(self) -> Collection[str]:
        """None: nobody takes a partition away."""
        return ()

    def claim(self) -> None:
        """Nobody else can have them."""

    def unread(self, held: Collection[str]) -> frozenset[str]:  # noqa: ARG002 (the protocol's)
        """None: what is there is read at once."""
        return frozenset()

    def settled(self) -> bool:
        """A partition that gave nothing holds nothing more."""
        return True

    def close(self) -> None:
        """Close the open segments."""
        for reader in self._readers.values():
            reader.close()
