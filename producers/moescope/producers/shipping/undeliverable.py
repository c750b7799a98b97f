"""Batches that no broker takes, kept beside the batch log."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from moescope.core.batchlog import partition_path
from moescope.core.wire import BatchDecodeError, peek_identity

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.batchlog import LogRecord

FOLDER: Final = "undeliverable"


def set_aside(root: Path, node: str, record: LogRecord, *, why: str, now_us: int) -> Path:
    """Keep a batch whole, with a description beside it; doing it again changes nothing.

    Args:
        root: Log root.
        node: Partition name.
        record: The batch.
        why: What the broker, or the client, said.
        now_us: µs since the epoch.

    Returns:
        The file of the batch. When this returns, it survives a power loss.

    Raises:
        OSError: The file system refused.
    """
    folder = partition_path(root / FOLDER, node)
    folder.mkdir(parents=True, exist_ok=True)
    batch = folder / f"{record.offset:020d}.batch"
    description = {
        "node": node,
        "offset": record.offset,
        "bytes": len(record.payload),
        "logged_at_us": record.append_time_us,
        "set_aside_at_us": now_us,
        "why": why,
        **_identity(record.payload),
    }
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    _write(batch.with_suffix(".json"), text.encode())
    _write(batch, record.payload)
    return batch


def _identity(payload: bytes) -> dict[str, int]:
    try:
        _, incarnation, sequence = peek_identity(payload)
    except BatchDecodeError:
        return {}
    return {"incarnation": incarnation, "sequence": sequence}


def _write(path: Path, content: bytes) -> None:
    half = path.with_name(f".{path.name}.half")
    try:
        with half.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except OSError:
        with suppress(OSError):
            half.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
