"""File and folder names of the batch log, both ways."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Final

from moescope.core.batchlog.errors import BatchLogUsageError

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT_SUFFIX: Final = ".seg"
_SEGMENT_NAME: Final = re.compile(r"([0-9]{20})\.seg")
_SAFE: Final = frozenset((string.ascii_letters + string.digits + "-_.").encode())
_MAX_NAME_BYTES: Final = 200  # leaves room for suffixes below the usual limit of 255
_ESCAPED: Final = re.compile(r"(?:[A-Za-z0-9_.-]|%[0-9A-F]{2})+")


def escape_name(name: str) -> str:
    """A file-system safe form of any non-empty name; `unescape_name` reverses it.

    ASCII letters, digits, `-`, `_` and `.` stay (a leading `.` does not, so that no name is
    hidden or means a parent folder); every other UTF-8 byte becomes `%` and two hex digits.

    Raises:
        BatchLogUsageError: The name is empty, not encodable or too long once escaped.
    """
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise BatchLogUsageError(
            f"The name {name!r} cannot be a batch log name.",
            why=str(error),
            next_step="Use a name that is valid Unicode.",
        ) from error
    escaped = "".join(
        chr(byte) if byte in _SAFE and not (index == 0 and byte == ord(".")) else f"%{byte:02X}"
        for index, byte in enumerate(raw)
    )
    if not 0 < len(escaped) <= _MAX_NAME_BYTES:
        raise BatchLogUsageError(
            f"The name {name!r} cannot be a batch log name.",
            why=f"Its file-system form has {len(escaped)} bytes.",
            next_step=f"Use a name whose escaped form has 1 to {_MAX_NAME_BYTES} bytes.",
        )
    return escaped


def unescape_name(escaped: str) -> str | None:
    """The name behind an escaped one, or None if `escape_name` never makes this form."""
    if not _ESCAPED.fullmatch(escaped):
        return None
    raw = re.sub(
        rb"%([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), escaped.encode("ascii")
    )
    try:
        name = raw.decode()
        return name if escape_name(name) == escaped else None
    except (UnicodeDecodeError, BatchLogUsageError):
        return None


def segment_path(partition_path: Path, base_offset: int) -> Path:
    """Where the segment whose first record has that offset lies."""
    return partition_path / f"{base_offset:020d}{SEGMENT_SUFFIX}"


def segment_base_offset(file_name: str) -> int | None:
    """First offset of the segment of that file name, or None if it is not a segment's name."""
    match = _SEGMENT_NAME.fullmatch(file_name)
    return int(match[1]) if match else None
