"""An overview of the partitions under a log root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.core.batchlog.partition import partition_names
from moescope.core.batchlog.reader import BatchLogReader

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition at one moment.

    Attributes:
        name: Partition name.
        path: Its folder.
        domain: Watermark domain.
        sealed: Whether it is complete.
        first_offset: Oldest record that is kept.
        end_offset: Offset after the last complete record.
    """

    name: str
    path: Path
    domain: str
    sealed: bool
    first_offset: int
    end_offset: int


def list_partitions(root: Path) -> list[PartitionInfo]:
    """The partitions under a log root, by name.

    Reads the last segment of every partition that is not sealed; to look out for new partitions
    often, use `partition_names`.

    Raises:
        BatchLogFormatError: A metadata file is damaged or of a newer version.
        BatchLogReadError: The operating system refused (retriable).
    """
    infos = []
    for name in partition_names(root):
        with BatchLogReader(root, name) as reader:
            sealed = reader.is_sealed()
            infos.append(
                PartitionInfo(
                    name=name,
                    path=reader.path,
                    domain=reader.meta.domain,
                    sealed=sealed,
                    first_offset=reader.first_offset(),
                    end_offset=reader.end_offset(),
                )
            )
    return infos
