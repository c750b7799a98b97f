"""Token ids that cannot be read without a key.

`KeyedHash` turns ids into keyed BLAKE2 hashes before they reach the recorder, which is then made
with `token_id_kind="keyed_hash"`. Equal ids give equal hashes under one key: what that protects,
and what not (how often each token occurs stays visible), is in docs/explanation/privacy.md.
"""

from __future__ import annotations

import os
import stat
import threading
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.core.errors import InputError, SettingsError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

SHORTEST_KEY: Final = 16
LONGEST_KEY: Final = 64

_LARGEST_VOCABULARY: Final = 1 << 22
_PERSON: Final = b"moescope tokens"
_UNKNOWN: Final = 0
_FOR_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class KeyedHash:
    """Hashes token ids under a key; a table of the vocabulary makes that a look-up.

    It may be called from several threads.

    Args:
        key: The key, or the path of a file that holds nothing else (a line end at its end is no
            part of it). Nobody but the file's owner may have access to it.
        vocabulary: So many ids are hashed at once; the others when they first occur.

    Raises:
        SettingsError: The key is too short or too long, or its file cannot be trusted or read.
    """

    def __init__(self, key: bytes | str | os.PathLike[str], *, vocabulary: int = 0) -> None:
        self._key = (
            _checked(key)
            if isinstance(key, bytes)
            else _checked(read_key(Path(key)), file=str(key))
        )
        self._lock = threading.Lock()
        self._table: NDArray[np.uint64] = np.zeros(0, np.uint64)
        if vocabulary:
            self(np.arange(min(vocabulary, _LARGEST_VOCABULARY)))

    def __call__(self, token_ids: ArrayLike) -> NDArray[np.uint64]:
        """The hashes of token ids.

        Args:
            token_ids: Integers of any shape, at least 0.

        Returns:
            uint64 array of that shape.

        Raises:
            InputError: They are no such integers.
        """
        ids = np.asarray(token_ids)
        if not ids.size:
            return np.zeros(ids.shape, np.uint64)
        if ids.dtype.kind not in "iu" or int(ids.min()) < 0:
            raise InputError(
                f"These {ids.dtype} are no token ids: integers of at least 0.",
                next_step="Pass the ids that the tokenizer gave.",
            )
        largest = int(ids.max())
        if largest >= _LARGEST_VOCABULARY:
            return self._without_table(ids)
        table = self._table
        if largest < len(table):
            hashes: NDArray[np.uint64] = table[ids]
            if np.all(hashes != _UNKNOWN):
                return hashes
        learnt: NDArray[np.uint64] = self._learn(ids, largest)[ids]
        return learnt

    def _learn(self, ids: NDArray[Any], largest: int) -> NDArray[np.uint64]:
        with self._lock:
            table = self._table
            if largest >= len(table):
                size = min(_LARGEST_VOCABULARY, max(2 * len(table), largest + 1))
                grown = np.zeros(size, np.uint64)
                grown[: len(table)] = table
                table = grown
            seen = np.unique(ids)
            for token in seen[table[seen] == _UNKNOWN].tolist():
                table[token] = self._hash(token)
            self._table = table
            return table

    def _without_table(self, ids: NDArray[Any]) -> NDArray[np.uint64]:
        hashes = [self._hash(token) for token in ids.ravel().tolist()]
        return np.array(hashes, np.uint64).reshape(ids.shape)

    def _hash(self, token: int) -> int:
        digest = blake2b(token.to_bytes(8, "little"), digest_size=8, key=self._key, person=_PERSON)
        return int.from_bytes(digest.digest(), "little")


def read_key(path: Path) -> bytes:
    """What a key file holds, without line ends at its end; its length is for the caller to judge.

    Raises:
        SettingsError: The file cannot be read, or somebody else could have read or written it.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(file, "rb") as opened:
            status = os.fstat(file)  # of what is read, not of what lies there by now
            if not stat.S_ISREG(status.st_mode):
                raise _bad_key(path, "It is no regular file.", "Name a file.")
            if status.st_mode & _FOR_OTHERS:
                raise _bad_key(path, "Others may have access to it.", f"Run: chmod 600 {path}")
            if status.st_uid not in {0, os.geteuid()}:
                raise _bad_key(path, "It belongs to another user.", "Let the engine's user own it.")
            return opened.read(LONGEST_KEY + 3).rstrip(b"\r\n")
    except OSError as error:
        why = error.strerror or str(error)
        raise _bad_key(path, why, "Create it, or let the engine's user read it.") from error


def _checked(key: bytes, *, file: str = "") -> bytes:
    if SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        return key
    # Of a file that is too long only the beginning was read.
    is_cut = file and len(key) > LONGEST_KEY
    found = f"more than {LONGEST_KEY}" if is_cut else f"{len(key)}"
    raise SettingsError(
        f"A key for token ids has {found} bytes{f' in {file}' if file else ''}, not "
        f"{SHORTEST_KEY} to {LONGEST_KEY}.",
        why="Shorter ones can be guessed, longer ones are no BLAKE2 keys.",
        next_step="Use 32 random bytes, for example of: head -c 32 /dev/urandom",
    )


def _bad_key(path: Path, why: str, next_step: str) -> SettingsError:
    return SettingsError(
        f"The key file {path} cannot be used.",
        why=why,
        next_step=next_step,
    )
