"""The thresholds in force as records of a compacted topic: from the store owner to processors.

One record per version that an activation names, and one with all activations. Versions are sent
before the activations that name them, and removed after those that did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
_VERSION_PREFIX: Final = b"version/"

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
    records = {
        _VERSION_PREFIX + name.encode(): pack(versions[name], CONTROL_KINDS)
        for name in sorted(named)
    }
    ordered = dict(sorted(activations.items()))
    return records | {ACTIVATIONS_KEY: pack(ordered, CONTROL_KINDS)}


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
        self._versions: Versions = {}
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
        if key is not None and key.startswith(_VERSION_PREFIX):
            name = key.removeprefix(_VERSION_PREFIX).decode(errors="replace")
            if value is None:
                self._versions.pop(name, None)
            else:
                self._versions[name] = _version(name, value)
        elif key == ACTIVATIONS_KEY:
            self._activations = {} if value is None else _activations(value)

    @property
    def is_whole(self) -> bool:
        """Whether every version that an activation names is there."""
        return all(
            not each.version or each.version in self._versions
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
        book.replace(self._versions, self._activations)
        return True


def _version(name: str, value: bytes) -> ThresholdVersion:
    version = unpack(value, CONTROL_KINDS)
    if not isinstance(version, ThresholdVersion) or version.version != name:
        raise PlainFormatError(f"The record of threshold version {name!r} holds something else.")
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
