"""Content keys: equal for rows whose tokens so far are equal, on any machine, and for no others.

Routing of a row follows from the tokens up to and including its own. So two rows with one content
key were given the same work, whichever engine, precision or revision did it, and can be compared.

The key of position p is the 64-bit BLAKE2b digest, keyed with the caller's secret, of the token ids
0 … p (4 bytes each, little endian). Two different prefixes get one key with a probability of 2⁻⁶⁴;
among a million prefixes any two do with 3 · 10⁻⁸. The hash goes on from where it stood, so a
position costs the same wherever it is. Arithmetic over arrays (a polynomial over a prime field,
sealed by SipHash) was tried: it pays from some thousand tokens in one call on, and costs a decode
step ten times as much.

Without a secret anybody can compute the key of a text that he guesses: such keys tell whether a
known prompt was served. With one, keys tell no more than which requests begin alike, and only logs
that were recorded with the same secret can be compared. A secret has 16 to 64 bytes, wherever it is
given: a shorter one can be guessed. What is no token (an image behind a placeholder id) is not in
the key.
"""

from __future__ import annotations

from copy import copy
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.core.errors import InputError, SettingsError
from moescope.producers.token_ids import LONGEST_KEY, SHORTEST_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

LARGEST_TOKEN: Final = 2**32 - 1

_PERSON: Final = b"moescope content"
_KEY_BYTES: Final = 8
_TOKEN_BYTES: Final = 4


def checked_secret(secret: bytes, *, file: str = "") -> bytes:
    """The secret of content keys, if it is one.

    Args:
        secret: 16 to 64 bytes.
        file: Where it was read, for the message.

    Raises:
        SettingsError: It is not; the message does not show it.
    """
    if isinstance(secret, bytes) and SHORTEST_KEY <= len(secret) <= LONGEST_KEY:
        return secret
    where = f"that in {file}" if file else "this one"
    found = f"is a {type(secret).__name__}"
    if isinstance(secret, bytes):
        # Of a file that is too long only the beginning was read.
        is_cut = file and len(secret) > LONGEST_KEY
        found = f"has more than {LONGEST_KEY}" if is_cut else f"has {len(secret)}"
    raise SettingsError(
        f"A secret for content keys has {SHORTEST_KEY} to {LONGEST_KEY} bytes: {where} {found}.",
        why="Shorter ones can be guessed, longer ones are no BLAKE2 keys.",
        next_step="Use 32 random bytes, kept in a file: head -c 32 /dev/urandom | base64",
    )


class ContentPrefix:
    """The tokens of one request so far; makes the keys of those that follow.

    Belongs to one thread.

    Args:
        key: The secret, 16 to 64 bytes; `b""` for keys that anybody can compute.

    Attributes:
        tokens: How many were read.

    Raises:
        SettingsError: It is no such secret.
    """

    __slots__ = ("_hash", "tokens")

    def __init__(self, key: bytes = b"") -> None:
        secret = checked_secret(key) if key else b""
        self._hash = blake2b(key=secret, digest_size=_KEY_BYTES, person=_PERSON)
        self.tokens = 0

    def extend(self, token_ids: ArrayLike) -> NDArray[np.uint64]:
        """Keys of the next tokens.

        Args:
            token_ids: Integers [T], 0 to 2³² − 1.

        Returns:
            uint64 [T]: each covers all tokens of the request up to and including its own.

        Raises:
            InputError: The ids are not what they have to be; none was read.
        """
        tokens = _checked(token_ids)
        update, digest = self._hash.update, self._hash.digest
        keys = bytearray()
        for token in _pieces(tokens):
            update(token)
            keys += digest()
        self.tokens += len(tokens)
        return _words(keys)

    def append(self, token: bytes) -> bytes:
        """Key of one more token, both as little-endian bytes (4 and 8 of them)."""
        self._hash.update(token)
        self.tokens += 1
        return self._hash.digest()

    def skip(self, tokens: bytes | bytearray) -> None:
        """Read tokens, 4 little-endian bytes each, whose keys nobody needs: a cached prefix."""
        self._hash.update(tokens)
        self.tokens += len(tokens) // _TOKEN_BYTES

    def copy(self) -> ContentPrefix:
        """Another request that begins with the same tokens (a cached prefix, a branch)."""
        other = copy(self)
        other._hash = self._hash.copy()  # noqa: SLF001 (of this class)
        return other


def content_keys(
    token_ids: ArrayLike, *, key: bytes = b"", start: ContentPrefix | None = None
) -> NDArray[np.uint64]:
    """Content keys of consecutive tokens of one request.

    Args:
        token_ids: Integers [T], 0 to 2³² − 1.
        key: The secret, 16 to 64 bytes; the same for all logs that are to be compared. `b""` for
            keys that anybody can compute. Not used with `start`, which has its own.
        start: What of the request came before; left as it is.

    Returns:
        uint64 [T]: key p covers the tokens up to and including p.

    Raises:
        InputError: The ids are not what they have to be, or the key is no such secret.
    """
    prefix = ContentPrefix(key) if start is None else start.copy()
    return prefix.extend(token_ids)


def step_keys(prefixes: Sequence[ContentPrefix], token_ids: ArrayLike) -> NDArray[np.uint64]:
    """Keys of one more token for each of several requests: a decode step.

    Args:
        prefixes: R requests, all different objects.
        token_ids: Integers [R], 0 to 2³² − 1.

    Returns:
        uint64 [R].

    Raises:
        InputError: The ids are not what they have to be, or not R; none was read.
    """
    tokens = _checked(token_ids)
    if len(tokens) != len(prefixes):
        raise InputError(f"{len(tokens)} token ids for {len(prefixes)} requests.")
    pairs = zip(prefixes, _pieces(tokens), strict=True)
    return _words(b"".join([prefix.append(token) for prefix, token in pairs]))


def _pieces(tokens: NDArray[np.uint32]) -> list[bytes]:
    data = tokens.tobytes()
    return [data[at : at + _TOKEN_BYTES] for at in range(0, len(data), _TOKEN_BYTES)]


def _words(keys: bytes | bytearray) -> NDArray[np.uint64]:
    return np.frombuffer(bytes(keys), "<u8").astype(np.uint64, copy=False)


def _checked(token_ids: ArrayLike) -> NDArray[np.uint32]:
    given: NDArray[Any] = np.asarray(token_ids)
    if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
        raise InputError(
            f"Token ids are {given.dtype} of shape {given.shape}, not integers [T].",
            next_step="Pass the ids of one request.",
        )
    if given.size and (int(given.min()) < 0 or int(given.max()) > LARGEST_TOKEN):
        raise InputError(
            f"Token ids go from {given.min()} to {given.max()}, not 0 to {LARGEST_TOKEN}.",
            next_step="Leave padding out before keys are made.",
        )
    return given.astype("<u4")
