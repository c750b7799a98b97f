"""Small files that are either old or new, never half: JSON documents and markers."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, TypeVar

from moescope.core.batchlog.errors import (
    BatchLogFormatError,
    BatchLogReadError,
    BatchLogWriteError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FieldType = TypeVar("FieldType")

FORMAT_VERSION = 1
"""Version of every JSON file of the log, and of the folder layout."""


@contextlib.contextmanager
def write_errors(doing: str, where: Path) -> Iterator[None]:
    """Turn an operating system error while changing the log into the documented one.

    Args:
        doing: What was tried, to go behind "could not".
        where: Named where the error names no file, as that of a full disk does not.

    Raises:
        BatchLogWriteError: An OSError came out of the block.
    """
    try:
        yield
    except OSError as error:
        raise BatchLogWriteError(
            f"Could not {doing}.",
            why=f"{error.strerror or error} ({error.filename or where})",
            next_step="Free disk space or fix the permissions, then try again.",
        ) from error


@contextlib.contextmanager
def read_errors(doing: str, where: Path) -> Iterator[None]:
    """Turn an operating system error while reading the log into the documented one.

    Args:
        doing: What was tried, to go behind "could not".
        where: Named where the error names no file.

    Raises:
        BatchLogReadError: An OSError came out of the block.
    """
    try:
        yield
    except OSError as error:
        raise BatchLogReadError(
            f"Could not {doing}.",
            why=f"{error.strerror or error} ({error.filename or where})",
            next_step="Check that the log root is mounted and readable, then try again.",
        ) from error


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power loss."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json_atomically(path: Path, document: dict[str, Any]) -> None:
    """Replace a JSON file as a whole, durably; on error the old one stays.

    Raises:
        OSError: The file system refused.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"version": FORMAT_VERSION, **document}, file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """The document of a JSON file of the log, or None if there is no such file.

    Raises:
        BatchLogFormatError: It is not JSON of this format version.
        BatchLogReadError: The operating system refused to read it.
    """
    with read_errors(f"read {path.name}", path):
        try:
            raw = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(document, dict):
        raise _damaged(path, "It does not hold a JSON object.")
    if document.get("version") != FORMAT_VERSION:
        raise BatchLogFormatError(
            f"The batch log file {path} has a version that this release cannot read.",
            why=f"It says {document.get('version')!r}, this release reads {FORMAT_VERSION}.",
            next_step="Open the log with the release of moescope that wrote it, or a newer one.",
        )
    return document


def field(path: Path, document: dict[str, Any], name: str, kind: type[FieldType]) -> FieldType:
    """One field of a document, checked.

    Raises:
        BatchLogFormatError: It is missing, of another type, or a negative number.
    """
    value = document.get(name)
    if (
        not isinstance(value, kind)
        or isinstance(value, bool)
        or (isinstance(value, int) and value < 0)
    ):
        raise _damaged(path, f"Its field {name!r} is {value!r}, not a valid {kind.__name__}.")
    return value


def _damaged(path: Path, why: str) -> BatchLogFormatError:
    return BatchLogFormatError(
        f"The batch log file {path} is damaged.",
        why=why,
        next_step="Restore the file from a copy, or move the partition's folder away.",
    )
