"""The steps before a writer may append: lock, metadata, seal."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from moescope.core.batchlog.errors import (
    BatchLogLockedError,
    BatchLogSealedError,
    BatchLogUsageError,
)
from moescope.core.batchlog.partition import (
    LIVE_DOMAIN,
    AppendClock,
    PartitionMeta,
    lock_path,
    read_meta,
    sealed_end_offset,
    write_meta,
)

if TYPE_CHECKING:
    from pathlib import Path


def lock_partition(path: Path, partition: str) -> int:
    """Lock a partition for writing; closing the returned file descriptor unlocks it.

    Raises:
        BatchLogLockedError: Another writer has it.
        OSError: The file system refused.
    """
    file = os.open(lock_path(path), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise BatchLogLockedError(
            f"Another writer has the batch log partition {partition!r}.",
            why=f"{path} is locked.",
            next_step="Stop the other writer (or a child that it forked), or use another name.",
        ) from error
    except OSError:
        os.close(file)
        raise
    return file


def settle_meta(
    path: Path, partition: str, domain: str | None, append_clock: AppendClock | None
) -> PartitionMeta:
    """Create a partition's metadata, or check that those that exist agree.

    Raises:
        BatchLogUsageError: They do not agree.
        BatchLogFormatError: They are damaged or of a newer version.
        OSError: The file system refused.
    """
    meta = read_meta(path)
    if meta is None:
        meta = PartitionMeta(partition, domain or LIVE_DOMAIN, append_clock or "clock")
        write_meta(path, meta)
    wanted = (domain or meta.domain, append_clock or meta.append_clock)
    if wanted != (meta.domain, meta.append_clock):
        raise BatchLogUsageError(
            f"The partition {partition!r} exists with other properties.",
            why=f"Its domain and append clock are {meta.domain!r} and {meta.append_clock!r}, "
            f"not {wanted[0]!r} and {wanted[1]!r}.",
            next_step="Use its properties, or another partition name.",
        )
    return meta


def refuse_sealed(path: Path, partition: str) -> None:
    """Stop a writer that comes too late.

    Raises:
        BatchLogSealedError: The partition is sealed.
    """
    end_offset = sealed_end_offset(path)
    if end_offset is not None:
        raise BatchLogSealedError(
            f"The batch log partition {partition!r} is sealed.",
            why=f"It was declared complete at offset {end_offset}.",
            next_step="Append to another partition.",
        )


def sync_file(path: Path) -> None:
    """Wait until the disk has a closed segment; one that was removed meanwhile is fine.

    Raises:
        OSError: The disk did not confirm.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # the byte cap removed it
    try:
        os.fdatasync(file)
    finally:
        os.close(file)
