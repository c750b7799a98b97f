"""Files of the spool and the lock that says whether an owner serves it.

`<id>.asked.json` waits; the owner renames it to `<id>.taken.json`, and answers with
`<id>.answer.json`. Every file appears whole, by renaming.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moescope.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = "commands"
ASKED: Final = ".asked.json"
TAKEN: Final = ".taken.json"
ANSWER: Final = ".answer.json"
_LOCK: Final = "owner.lock"
LARGEST_BYTES: Final = 1 << 20
"""Of one file."""
_LONGEST_NAME_BYTES: Final = 200
"""So that the longest kind still fits into a file name of 255 bytes."""
_NO_FILE_ERRORS: Final = frozenset({errno.ELOOP, errno.ENXIO})
"""What opening a link or a socket ends in."""
PRIVATE_FOLDER: Final = 0o700
_PRIVATE_FILE: Final = 0o600
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_FOUND_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_LOCK_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


class SpoolFolder:
    """The folder of one data directory; made on first use, for its owner's eyes only.

    Raises:
        InputError: It belongs to somebody else, who could put commands into it.
    """

    def __init__(self, data_directory: Path) -> None:
        self._folder = data_directory / FOLDER
        with suppress(FileExistsError):
            self._folder.mkdir(mode=PRIVATE_FOLDER)
        found = self._folder.lstat()
        if found.st_uid not in {os.geteuid(), 0} and os.geteuid() != 0:
            raise InputError(
                f"The folder {self._folder} belongs to another account.",
                why="Whoever can write to it can change thresholds.",
                next_step="Run the command as the account that runs the owner.",
            )
        if found.st_mode & 0o077 and found.st_uid == os.geteuid():
            self._folder.chmod(PRIVATE_FOLDER)

    def path(self, name: str, kind: str) -> Path:
        """Of one file."""
        return self._folder / f"{name}{kind}"

    def names(self, kind: str) -> list[str]:
        """Names of the files of a kind, oldest first; without `strangers`."""
        with os.scandir(self._folder) as entries:
            found = [entry.name for entry in entries if _is_ours(entry, kind)]
        return sorted(name.removesuffix(kind) for name in found)

    def strangers(self) -> set[str]:
        """Entries named like a command or answer that are no plain file, or have a long name."""
        with os.scandir(self._folder) as entries:
            return {
                entry.name
                for entry in entries
                for kind in (ASKED, TAKEN, ANSWER)
                if entry.name.endswith(kind) and not _is_ours(entry, kind)
            }

    def has(self, name: str, kind: str) -> bool:
        """Whether a file is there."""
        return os.path.lexists(self.path(name, kind))

    def write(self, name: str, kind: str, document: dict[str, Any]) -> None:
        """Make a file appear whole, or not at all.

        Raises:
            InputError: The document is larger than `LARGEST_BYTES`.
        """
        content = json.dumps(document).encode()
        if len(content) > LARGEST_BYTES:
            raise InputError(
                f"A command may have {LARGEST_BYTES} bytes; this one has {len(content)}.",
                next_step="Give it fewer or shorter arguments.",
            )
        hidden = self._folder / f".{uuid.uuid4().hex}.json.{os.getpid()}"
        try:
            with os.fdopen(os.open(hidden, _NEW_FILE, _PRIVATE_FILE), "wb") as file:
                file.write(content)
            hidden.rename(self.path(name, kind))
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise

    def read(self, name: str, kind: str) -> dict[str, Any] | None:
        """What a file holds; None when there is no such file.

        Raises:
            InputError: It is no plain file, or no JSON object.
        """
        path = self.path(name, kind)
        try:
            # Without blocking: a named pipe would keep its reader waiting for a writer.
            opened = os.open(path, _FOUND_FILE)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _NO_FILE_ERRORS:
                raise _no_file(path) from error
            raise
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise _no_file(path)
        with os.fdopen(opened, "rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        try:
            document = json.loads(content) if len(content) <= LARGEST_BYTES else None
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise InputError(f"The file {path} holds no command.", next_step="Remove it.")
        return document

    def take(self, name: str) -> bool:
        """Take a command; False when it was withdrawn meanwhile."""
        try:
            self.path(name, ASKED).rename(self.path(name, TAKEN))
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str, kind: str) -> bool:
        """Remove a file; whether it was there."""
        try:
            self.path(name, kind).unlink()
        except FileNotFoundError:
            return False
        return True

    def age_seconds(self, name: str, kind: str, now_us: int) -> float:
        """How long ago a file was written."""
        return now_us / 1e6 - self.path(name, kind).stat().st_mtime

    def remove_halves(self) -> None:
        """Remove what a killed writer left."""
        for path in self._folder.glob(".*.json.*"):
            with suppress(IsADirectoryError, PermissionError):
                path.unlink(missing_ok=True)

    def is_served(self) -> bool:
        """Whether an owner takes commands from here; the kernel frees a dead one's lock."""
        with self._lock_file() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Hold the lock that says so."""
        with self._lock_file() as file:
            # Waits only for somebody who is just looking whether it is held.
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _lock_file(self) -> Iterator[int]:
        opened = os.open(self._folder / _LOCK, _LOCK_FILE, _PRIVATE_FILE)
        try:
            yield opened
        finally:
            os.close(opened)


def _is_ours(entry: os.DirEntry[str], kind: str) -> bool:
    name = entry.name
    return (
        name.endswith(kind)
        and len(os.fsencode(name.removesuffix(kind))) <= _LONGEST_NAME_BYTES
        and entry.is_file(follow_symlinks=False)
    )


def _no_file(path: Path) -> InputError:
    return InputError(f"{path} is no plain file.", next_step="Remove it.")
