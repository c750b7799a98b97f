"""A partition's folder: its metadata, segments, seal and lock."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from moescope.core.batchlog.errors import BatchLogFormatError, PartitionNotFoundError
from moescope.core.batchlog.files import field, read_errors, read_json, write_json_atomically
from moescope.core.batchlog.names import escape_name, segment_base_offset, unescape_name

if TYPE_CHECKING:
    from pathlib import Path

AppendClock = Literal["clock", "none"]

LIVE_DOMAIN: Final = "live"
_META_FILE: Final = "partition.json"
_SEAL_FILE: Final = "sealed"
_LOCK_FILE: Final = "writer.lock"


@dataclass(frozen=True, slots=True)
class PartitionMeta:
    """What is fixed when a partition is created.

    Attributes:
        name: Partition name, for example the node.
        domain: Watermark domain; partitions of one domain share a notion of event time.
        append_clock: "clock" if append times mean something, "none" if there are none.
    """

    name: str
    domain: str = LIVE_DOMAIN
    append_clock: AppendClock = "clock"


class Segment(NamedTuple):
    """One segment file as found on disk."""

    base_offset: int
    path: Path


def partition_path(root: Path, name: str) -> Path:
    """The folder of a partition.

    Raises:
        BatchLogUsageError: The name cannot be a partition name.
    """
    return root / escape_name(name)


def lock_path(path: Path) -> Path:
    """The file that the writer of a partition keeps locked."""
    return path / _LOCK_FILE


def partition_names(root: Path) -> list[str]:
    """Names of the partitions under a log root, sorted; no file in them is opened.

    A root that does not exist (yet) has none. A partition appears once its metadata are complete.

    Raises:
        BatchLogReadError: The root cannot be listed.
    """
    with read_errors(f"list the log root {root}", root):
        try:
            folders = [entry.name for entry in os.scandir(root) if entry.is_dir()]
        except FileNotFoundError:
            return []
        names = (unescape_name(folder) for folder in folders)
        return sorted(
            name for name in names if name and (root / escape_name(name) / _META_FILE).exists()
        )


def read_meta(path: Path) -> PartitionMeta | None:
    """Metadata of the partition in that folder, or None if there is no partition.

    Raises:
        BatchLogFormatError: The metadata are damaged, of another version, or another folder's.
        BatchLogReadError: They cannot be read.
    """
    file = path / _META_FILE
    document = read_json(file)
    if document is None:
        return None
    name = field(file, document, "name", str)
    append_clock = field(file, document, "append_clock", str)
    if escape_name(name) != path.name or append_clock not in get_args(AppendClock):
        raise BatchLogFormatError(
            f"The batch log file {file} does not describe this folder.",
            why=f"It names the partition {name!r} with append clock {append_clock!r}.",
            next_step="A partition's folder cannot be renamed: give it its former name back.",
        )
    return PartitionMeta(
        name=name,
        domain=field(file, document, "domain", str),
        append_clock="none" if append_clock == "none" else "clock",
    )


def existing_meta(path: Path, name: str) -> PartitionMeta:
    """Metadata of a partition that has to exist.

    Raises:
        PartitionNotFoundError: There is none.
        BatchLogFormatError: The metadata are damaged.
    """
    meta = read_meta(path)
    if meta is None:
        raise PartitionNotFoundError(
            f"There is no batch log partition {name!r}.",
            why=f"{path} has no {_META_FILE}.",
            next_step="Check the log root and the partition name, or wait until a writer made it.",
        )
    return meta


def write_meta(path: Path, meta: PartitionMeta) -> None:
    """Create the metadata of a partition.

    Raises:
        OSError: The file system refused.
    """
    document = {"name": meta.name, "domain": meta.domain, "append_clock": meta.append_clock}
    write_json_atomically(path / _META_FILE, document)


def list_segments(path: Path) -> list[Segment]:
    """The segments of a partition in offset order.

    Raises:
        BatchLogReadError: The folder cannot be listed.
    """
    with read_errors(f"list the segments in {path}", path), os.scandir(path) as entries:
        found = [(segment_base_offset(entry.name), entry.name) for entry in entries]
    return sorted(Segment(base, path / name) for base, name in found if base is not None)


def sealed_end_offset(path: Path) -> int | None:
    """The end offset of a sealed partition, or None while it is not sealed.

    Raises:
        BatchLogFormatError: The marker is damaged.
    """
    file = path / _SEAL_FILE
    document = read_json(file)
    return None if document is None else field(file, document, "end_offset", int)


def write_seal(path: Path, end_offset: int) -> None:
    """Mark a partition as complete.

    Raises:
        OSError: The file system refused.
    """
    write_json_atomically(path / _SEAL_FILE, {"end_offset": end_offset})
