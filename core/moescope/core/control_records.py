"""The thresholds in force as records of a compacted topic: from the store owner to processors.

Each version that an activation names, in one record or, if it is large, in several; and one record
with all activations. Versions are sent before the activations that name them, and removed after
those that did. The key of a version's record holds a digest of the whole, so that records of two
contents under one name are never mixed.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from moescope.core.plain_codec import Kinds, PlainFormatError, pack, unpack
from moescope.core.thresholds import (
    Activation,
    BaselineReference,
    LineKey,
    LineSource,
    MetricLines,
    PagingRule,
    Standing,
    ThresholdScope,
    ThresholdVersion,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moescope.core.thresholds import ThresholdBook

ACTIVATIONS_KEY: Final = b"activations"
PART_BYTES: Final = 4 << 20
"""Most bytes of one record."""
_VERSION_PREFIX: Final = "version/"
_DIGEST_BYTES: Final = 8

CONTROL_KINDS: Final = Kinds(
    (
        Activation, BaselineReference, LineKey, LineSource, MetricLines, PagingRule, Standing,
        ThresholdScope, ThresholdVersion,
    )
)  # fmt: skip

Versions = dict[str, ThresholdVersion]
Activations = dict[ThresholdScope, tuple[Activation, ...]]


def control_records(
    versions: Mapping[str, ThresholdVersion],
    activations: Mapping[ThresholdScope, tuple[Activation, ...]],
) -> dict[bytes, bytes]:
    """What the topic has to hold: key → value, in the order in which it has to be sent.

    Args:
        versions: By name, at least those that an activation names.
        activations: Per scope.
    """
    named = {each.version for listed in activations.values() for each in listed if each.version}
    records: dict[bytes, bytes] = {}
    for name in sorted(named):
        records |= _version_records(name, pack(versions[name], CONTROL_KINDS))
    ordered = dict(sorted(activations.items()))
    return records | {ACTIVATIONS_KEY: pack(ordered, CONTROL_KINDS)}


class _Part(NamedTuple):
    """What the key of a version's record says."""

    name: str
    digest: str
    part: int
    parts: int

    @property
    def key(self) -> bytes:
        return f"{_VERSION_PREFIX}{self.name}/{self.digest}/{self.part}/{self.parts}".encode()

    @classmethod
    def of(cls, key: bytes) -> _Part | None:
        """The part that a key names; None: it is of something else."""
        text = key.decode(errors="replace")
        if not text.startswith(_VERSION_PREFIX):
            return None
        pieces = text.removeprefix(_VERSION_PREFIX).rsplit("/", 3)
        if len(pieces) != len(cls._fields) or not all(each.isdecimal() for each in pieces[2:]):
            return None
        return cls(pieces[0], pieces[1], int(pieces[2]), int(pieces[3]))


def _version_records(name: str, data: bytes) -> dict[bytes, bytes]:
    digest = blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
    pieces = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    return {_Part(name, digest, part, len(pieces)).key: piece for part, piece in enumerate(pieces)}


def control_changes(
    published: Mapping[bytes, bytes], wanted: Mapping[bytes, bytes]
) -> list[tuple[bytes, bytes | None]]:
    """The records to send so that a topic holds what it has to; None removes a key.

    Args:
        published: Newest value of each key of the topic.
        wanted: Of :func:`control_records`.
    """
    changed = [(key, value) for key, value in wanted.items() if published.get(key) != value]
    return [*changed, *((key, None) for key in sorted(published.keys() - wanted.keys()))]


class ControlReader:
    """Thresholds in force as read from the topic, record by record."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, str], dict[int, bytes]] = {}
        self._versions: dict[tuple[str, str], ThresholdVersion] = {}
        self._activations: Activations = {}

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Take the next record; keys of later versions of moescope are passed over.

        Args:
            key: Of the record.
            value: None removes what the key stood for.

        Raises:
            PlainFormatError: The value is damaged, or of something else.
            PlainVersionError: It was written by a newer moescope.
        """
        if key is None:
            return
        if key == ACTIVATIONS_KEY:
            self._activations = {} if value is None else _activations(value)
        elif (part := _Part.of(key)) is not None:
            self._add_part(part, value)

    def _add_part(self, part: _Part, value: bytes | None) -> None:
        content = (part.name, part.digest)
        if value is None:
            self._pieces.pop(content, None)
            self._versions.pop(content, None)
        elif content not in self._versions:
            pieces = self._pieces.setdefault(content, {})
            pieces[part.part] = value
            if len(pieces) == part.parts:
                del self._pieces[content]
                data = b"".join(pieces[number] for number in sorted(pieces))
                self._versions[content] = _version(part, data)

    @property
    def _by_name(self) -> Versions:
        """Versions by name; of two contents the one that came last."""
        return {name: version for (name, _), version in self._versions.items()}

    @property
    def is_whole(self) -> bool:
        """Whether every version that an activation names is there."""
        names = self._by_name.keys()
        return all(
            not each.version or each.version in names
            for listed in self._activations.values()
            for each in listed
        )

    def fill(self, book: ThresholdBook) -> bool:
        """Let a book judge by what was read; not while a named version is still to come.

        Returns:
            Whether the book was filled.
        """
        if not self.is_whole:
            return False
        book.replace(self._by_name, self._activations)
        return True


def _version(part: _Part, data: bytes) -> ThresholdVersion:
    is_same = blake2b(data, digest_size=_DIGEST_BYTES).hexdigest() == part.digest
    version = unpack(data, CONTROL_KINDS) if is_same else None
    if not isinstance(version, ThresholdVersion) or version.version != part.name:
        raise PlainFormatError(f"A record of threshold version {part.name!r} holds something else.")
    return version


def _activations(value: bytes) -> Activations:
    activations = unpack(value, CONTROL_KINDS)
    if not isinstance(activations, dict) or not all(
        isinstance(scope, ThresholdScope)
        and isinstance(listed, tuple)
        and all(isinstance(each, Activation) for each in listed)
        for scope, listed in activations.items()
    ):
        raise PlainFormatError("The record of activations holds something else.")
    return activations
