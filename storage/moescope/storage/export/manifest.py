"""The manifest: which files are the export right now, as of which commit.

It is written last, to a temporary name, and renamed into place, so that a reader always finds a
consistent set: all its files were written from one read transaction and the ones before it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from moescope.storage.export.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANIFEST_NAME: Final = "manifest.json"
FORMAT: Final = 1
NOTHING_EXPORTED: Final = -1
"""Lower than every commit id."""


class Level(StrEnum):
    """How far a file was compacted."""

    TAIL = "tail"
    MINUTE = "minute"
    HOUR = "hour"


@dataclass(frozen=True, slots=True)
class File:
    """One Parquet file: its path below the export folder, and its level."""

    path: str
    level: Level


@dataclass(slots=True)
class Partition:
    """Files of one hour of one table.

    Attributes:
        files: In the order in which they were written.
        rows: Rows when the partition was last written whole; -1: it never was.
        commit_sum: Sum of their commit ids; with `rows` it tells whether the store still agrees.
    """

    files: list[File] = field(default_factory=list)
    rows: int = -1
    commit_sum: int = 0

    @property
    def whole(self) -> bool:
        """Whether it was written whole and nothing was added since."""
        return self.rows >= 0 and all(file.level is Level.HOUR for file in self.files)


@dataclass(slots=True)
class TableFiles:
    """Files of one table.

    Attributes:
        empty: A file without rows that shows the columns.
        partitions: By name of the hour.
        removals: Files of (row_key, commit_id): a row of any data file with that key and a lower
            commit id was removed or replaced.
    """

    empty: str
    partitions: dict[str, Partition] = field(default_factory=dict)
    removals: list[File] = field(default_factory=list)

    def paths(self) -> Iterator[str]:
        """Every file of the table."""
        yield self.empty
        for partition in self.partitions.values():
            yield from (file.path for file in partition.files)
        yield from (file.path for file in self.removals)

    def data_paths(self) -> list[str]:
        """The files that hold rows, the empty one first."""
        return [
            self.empty,
            *(file.path for part in self.partitions.values() for file in part.files),
        ]


@dataclass(frozen=True, slots=True)
class Offset:
    """How far one source partition was read in the transaction that was exported."""

    partition: str
    domain: str
    emitted_to: int
    replay_from: int
    watermark_us: int


@dataclass(frozen=True, slots=True)
class Retired:
    """A file that left the manifest but may still be read by a query in flight."""

    path: str
    at_us: int


@dataclass(slots=True)
class Manifest:
    """A consistent set of files.

    Attributes:
        generation: Counts manifests.
        commit_id: Every commit of the store up to this one is in the files.
        minute_commit_id: Commits up to this one are in minute or hour files.
        written_at_us: When the read transaction began.
        moescope_version: Who wrote it.
        layout: `layout_fingerprint` of the writer.
        columns: `columns_fingerprint` of the writer.
        offsets: Of the same transaction.
        tables: Files by table name.
        retired: Files to delete later.
    """

    generation: int
    commit_id: int
    minute_commit_id: int
    written_at_us: int
    moescope_version: str
    layout: str
    columns: str
    offsets: list[Offset] = field(default_factory=list)
    tables: dict[str, TableFiles] = field(default_factory=dict)
    retired: list[Retired] = field(default_factory=list)

    def live(self) -> set[str]:
        """Every file that readers of this manifest open."""
        return {path for table in self.tables.values() for path in table.paths()}

    def paths(self) -> set[str]:
        """Every file that the manifest names, retired ones included."""
        return self.live() | {retired.path for retired in self.retired}

    def copy(self) -> Manifest:
        """An independent copy to change."""
        return _from_json(json.loads(self._to_json()))

    def publish(self, folder: Path) -> None:
        """Make this the export, atomically; durable once the folder is synced."""
        temporary = folder / f"{MANIFEST_NAME}.new"
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(self._to_json())
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(folder / MANIFEST_NAME)

    def _to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))


def read_manifest(folder: Path) -> Manifest | None:
    """The current manifest, or None where nothing was exported yet.

    Raises:
        ExportError: It exists but cannot be understood.
    """
    try:
        data = (folder / MANIFEST_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ExportError(
            f"The export's manifest in {folder} cannot be read.",
            why=str(error),
            next_step="Check the folder's permissions.",
        ) from error
    try:
        return _from_json(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ExportError(
            f"The export's manifest in {folder} is damaged or of another format.",
            why=f"{type(error).__name__}: {error}",
            next_step="Remove the folder; the store's owner exports everything again.",
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(items: list[dict[str, Any]]) -> list[File]:
    return [File(item["path"], Level(item["level"])) for item in items]


def _from_json(raw: dict[str, Any]) -> Manifest:
    values = dict(raw)
    if values.pop("format") != FORMAT:
        raise ValueError(f"format is not {FORMAT}")
    values["offsets"] = [Offset(**item) for item in values["offsets"]]
    values["retired"] = [Retired(**item) for item in values["retired"]]
    values["tables"] = {
        name: TableFiles(
            item["empty"],
            {
                partition: Partition(_files(part["files"]), part["rows"], part["commit_sum"])
                for partition, part in item["partitions"].items()
            },
            _files(item["removals"]),
        )
        for name, item in values["tables"].items()
    }
    return Manifest(**values)
