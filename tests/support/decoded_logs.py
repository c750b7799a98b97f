"""Reading a batch log back in tests: every batch of a partition, decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moescope.core.batchlog import BatchLogReader, partition_names
from moescope.core.wire import decode_batch

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.batch import RoutingBatch
    from moescope.core.batchlog import LogRecord


class LoggedBatch(NamedTuple):
    """A decoded batch and the record that it came from."""

    batch: RoutingBatch
    record: LogRecord


def logged_batches(root: Path, partition: str) -> list[LoggedBatch]:
    """All batches of a sealed partition, in offset order."""
    with BatchLogReader(root, partition) as reader:
        assert reader.is_sealed()
        found: list[LoggedBatch] = []
        offset = 0
        while not reader.is_finished(offset):
            result = reader.read(offset)
            assert result.gap is None
            assert not result.corrupt
            found += [LoggedBatch(decode_batch(item.payload), item) for item in result.records]
            offset = result.next_offset
    return found


def log_of(root: Path) -> dict[str, list[LoggedBatch]]:
    """All batches of all partitions under a root."""
    return {name: logged_batches(root, name) for name in partition_names(root)}
