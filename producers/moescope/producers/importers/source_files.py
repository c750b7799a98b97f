"""Reading the files of an import: plain, gzip or zstd, within bounds, line by line."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

import zstandard

from moescope.producers.importers.errors import ImportFormatError, RejectedLineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from _typeshed import WriteableBuffer

    from moescope.producers.importers.report import Rejects

MAX_LINE_BYTES = 64 << 20
MAX_DOCUMENT_BYTES = 512 << 20
MAX_INFLATED_BYTES = 64 << 30
_MAX_WINDOW_BYTES = 1 << 27
_CHUNK_BYTES = 1 << 20
_ZSTD_INPUT_BYTES = 4096
"""Little at a time: so much of a decompression bomb inflates to 128 MiB at most."""


def file_digest(path: Path, identity: bytes, pattern: str = "") -> bytes:
    """SHA-256 of an import: its format and options, and the bytes of the file as they lie there.

    Args:
        path: The file, or the folder of a run.
        identity: Of the format and its options.
        pattern: Of the files of a run; their names are part of what is imported.

    Raises:
        ImportFormatError: The file cannot be read.
    """
    digest = hashlib.sha256(identity + b"\0\0")
    for part in files_of_run(path, pattern):
        if part != path:
            digest.update(part.name.encode() + b"\0" + str(part.stat().st_size).encode() + b"\0")
        with opened(part) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.digest()


def files_of_run(path: Path, pattern: str) -> list[Path]:
    """The files of an import: the file itself, or those of a folder that match, by name.

    Args:
        path: A file or a folder.
        pattern: Such as `rank*.jsonl*`; empty when the format knows no folders.

    Raises:
        ImportFormatError: A folder without such files, or a format that reads none.
    """
    if not path.is_dir():
        return [path]
    if not pattern:
        raise ImportFormatError(
            f"{path} is a folder.",
            why="Files of this format do not belong together.",
            next_step="Name the files.",
        )
    found = sorted(part for part in path.glob(pattern) if part.is_file())
    if not found:
        raise ImportFormatError(
            f"The folder {path} has no file {pattern}.", next_step="Check the folder."
        )
    return found


def check_readable(path: Path, pattern: str = "") -> None:
    """See whether the files of an import can be read.

    Args:
        path: The file, or the folder of a run.
        pattern: Of the files of a run.

    Raises:
        ImportFormatError: One of them cannot, or is something else than a file.
    """
    for part in files_of_run(path, pattern):
        if part.exists() and not part.is_file():
            raise ImportFormatError(
                f"{part} is no regular file.",
                why="A file is read more than once: first for its identity, then for its rows.",
                next_step="Write it to a file, and import that.",
            )
        with opened(part) as file:
            file.read(1)


def is_compressed(path: Path) -> bool:
    """Whether a file's name says that it is compressed."""
    return path.suffix in {".gz", ".zst", ".zstd"}


def read_lines(path: Path, rejects: Rejects) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines of a file with their numbers, from 1.

    Lines over `MAX_LINE_BYTES` are rejected, not read into memory.

    Raises:
        ImportFormatError: The file cannot be read, or is damaged or too large inside.
    """
    with _inflated(path) as file:
        number, total = 0, 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            total += len(line)
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
                    total += len(line)
                    _check_inflated(path, total)
                error = RejectedLineError("line too long", f"> {MAX_LINE_BYTES} bytes")
                rejects.add(number, error, path)
                continue
            _check_inflated(path, total)
            if line.strip():
                yield number, line


def read_document(path: Path) -> bytes:
    """A whole file, inflated.

    Raises:
        ImportFormatError: It cannot be read, is damaged, or larger than `MAX_DOCUMENT_BYTES`.
    """
    with _inflated(path) as file:
        document = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(document) > MAX_DOCUMENT_BYTES:
        raise ImportFormatError(
            f"{path} is too large to be read whole.",
            why=f"It has more than {MAX_DOCUMENT_BYTES} bytes inside.",
            next_step="Split it; write JSON lines, or leave tensor files uncompressed.",
        )
    return document


def _check_inflated(path: Path, total: int) -> None:
    if total > MAX_INFLATED_BYTES:
        raise ImportFormatError(
            f"{path} inflates to more than {MAX_INFLATED_BYTES} bytes.",
            next_step="Split the file.",
        )


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file as it is.

    Raises:
        ImportFormatError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ImportFormatError(
            f"The file {path} cannot be read.",
            why=error.strerror or str(error),
            next_step="Check the path and its permissions.",
        ) from error


@contextmanager
def _inflated(path: Path) -> Iterator[IO[bytes]]:
    try:
        with opened(path) as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=file) as inflated:
                    yield cast("IO[bytes]", inflated)
            elif path.suffix in {".zst", ".zstd"}:
                yield io.BufferedReader(_ZstdFile(file), _CHUNK_BYTES)
            else:
                yield file
    except (gzip.BadGzipFile, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise ImportFormatError(
            f"The compressed file {path} is damaged.",
            why=str(error),
            next_step="Fetch it again, or inflate it by hand to see how far it is whole.",
        ) from error


class _ZstdFile(io.RawIOBase):
    """A zstd file of any number of frames; unlike the library's reader it notices truncation."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._unread = b""
        self._inflated = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        while not self._inflated and self._inflate():
            pass
        taken = self._inflated[: len(view)]
        self._inflated = self._inflated[len(view) :]
        view[: len(taken)] = taken
        return len(taken)

    def _inflate(self) -> bool:
        """Inflate a little more; False at the end of the file."""
        compressed = self._unread or self._file.read(_ZSTD_INPUT_BYTES)
        self._unread = b""
        if not compressed:
            if self._frame is not None:
                message = "The last frame is not complete."
                raise zstandard.ZstdError(message)
            return False
        if self._frame is None:
            self._frame = self._decompressor.decompressobj()
        self._inflated = self._frame.decompress(compressed)
        if self._frame.eof:
            self._unread = self._frame.unused_data
            self._frame = None
        return True
