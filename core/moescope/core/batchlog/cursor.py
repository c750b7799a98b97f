"""Named read positions: how far a consumer of a partition has got."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.batchlog.errors import BatchLogFormatError, BatchLogUsageError
from moescope.core.batchlog.files import (
    field,
    read_errors,
    read_json,
    sync_folder,
    write_errors,
    write_json_atomically,
)
from moescope.core.batchlog.names import escape_name, unescape_name
from moescope.core.batchlog.partition import existing_meta, partition_path

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = "cursors"
_SUFFIX = ".json"


class Cursor:
    """A durable, monotone read position of one consumer, registered with the partition.

    While a cursor is registered, the records from its offset on count as unread when the byte cap
    asks for room. A cursor belongs to one process and one thread at a time.

    Args:
        root: Log root.
        partition: Partition name; it has to exist.
        name: Name of the consumer; any non-empty text.

    Raises:
        PartitionNotFoundError: There is no such partition.
        BatchLogUsageError: The name cannot be a cursor name.
        BatchLogFormatError: The cursor file, or the partition's metadata, are damaged.
        BatchLogWriteError: A new cursor cannot be registered (retriable).
    """

    def __init__(self, root: Path, partition: str, name: str) -> None:
        path = partition_path(root, partition)
        existing_meta(path, partition)
        self.name = name
        self._file = path / _FOLDER / f"{escape_name(name)}{_SUFFIX}"
        stored = _read_offset(self._file)
        self._offset = stored or 0
        if stored is None:
            with write_errors(f"register the cursor {name!r}", self._file):
                self._file.parent.mkdir(exist_ok=True)
                sync_folder(path)
                self._store(0)

    @property
    def offset(self) -> int:
        """The next record that the consumer wants: everything below is done."""
        return self._offset

    def advance(self, offset: int) -> None:
        """Move the cursor; when this returns, the new position survives a power loss.

        Raises:
            BatchLogUsageError: The offset lies before the cursor.
            BatchLogWriteError: The file system refused (retriable); the cursor stays.
        """
        if offset < self._offset:
            raise BatchLogUsageError(
                f"The cursor {self.name!r} cannot move back to {offset}.",
                why=f"It is at {self._offset}, and may have let older records go.",
                next_step="Read from an earlier offset without a cursor, or register another one.",
            )
        if offset == self._offset:
            return
        with write_errors(f"move the cursor {self.name!r}", self._file):
            self._store(offset)
        self._offset = offset

    def remove(self) -> None:
        """Unregister: the consumer is gone for good and holds no records back.

        Raises:
            BatchLogWriteError: The file system refused (retriable).
        """
        with write_errors(f"remove the cursor {self.name!r}", self._file):
            self._file.unlink(missing_ok=True)
            sync_folder(self._file.parent)

    def _store(self, offset: int) -> None:
        write_json_atomically(self._file, {"name": self.name, "offset": offset})


def cursor_offsets(path: Path) -> dict[str, int]:
    """The offset of every registered cursor of the partition in a folder, by name.

    A damaged cursor counts as 0, so that nothing it may need passes for read.

    Raises:
        BatchLogReadError: The cursors cannot be listed or read.
    """
    folder = path / _FOLDER
    with read_errors(f"list the cursors in {folder}", folder):
        try:
            files = [file for file in folder.iterdir() if file.name.endswith(_SUFFIX)]
        except FileNotFoundError:
            return {}
    offsets: dict[str, int] = {}
    for file in files:
        name = unescape_name(file.name.removesuffix(_SUFFIX))
        if name is None:
            continue
        try:
            offset = _read_offset(file)
        except BatchLogFormatError:
            offset = 0
        if offset is not None:
            offsets[name] = offset
    return offsets


def _read_offset(file: Path) -> int | None:
    document = read_json(file)
    return None if document is None else field(file, document, "offset", int)
