"""Records of the dead-letter topic: a letter, and what became of its replay.

A letter's record holds the payload as it was read, under the key `PARTITION:OFFSET`, and says in
its headers where it came from and what is wrong. A record without a value under the same key says
that the letter is being replayed, with the identity that its batch is given, or was replayed.
Letters that come twice are the same letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from moescope.core.accounts import DeadLetter
from moescope.core.kafka.topics import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KIND_HEADER: Final = "moescope-kind"
_PREFIX: Final = "moescope-"
_ROOM_FOR_HEADERS: Final = 16 << 10
LARGEST_PAYLOAD: Final = MAX_MESSAGE_BYTES - _ROOM_FOR_HEADERS
"""A larger payload could not be published beside the headers."""
_LONGEST_DETAIL: Final = 2_000
_LARGEST_NUMBER: Final = 1 << 63


class RecordKind(StrEnum):
    """What a record of the topic says."""

    LETTER = "letter"
    REPLAYING = "replaying"
    """The letter's batch is being written again; it may be there or not."""
    REPLAYED = "replayed"
    """The letter's batch was written again, and acknowledged."""


class PayloadState(StrEnum):
    """Whether a letter's record holds what was read."""

    WHOLE = "whole"
    OMITTED = "omitted"
    """It is larger than a record of the topic may be."""


class TopicRecord(NamedTuple):
    """What is written to a topic.

    Attributes:
        key: UTF-8.
        value: None: the record is all key and headers.
        headers: Names and UTF-8 values.
    """

    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLetter:
    """A letter as the topic holds it.

    Attributes:
        letter: Its payload is empty where it was omitted.
        topic: Where the record was read from.
        sha256: Of the payload, in hexadecimal.
        payload_state: Whether the payload is there.
    """

    letter: DeadLetter
    topic: str
    sha256: str
    payload_state: PayloadState

    @property
    def key(self) -> str:
        """Names the letter everywhere."""
        return letter_key(self.letter.partition, self.letter.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayMark:
    """What became of a letter's replay.

    Attributes:
        key: The letter's.
        kind: `REPLAYING` or `REPLAYED`.
        incarnation, sequence: Identity of the batch that is written; a batch that is written
            twice has the same one, so that it counts once.
        marked_us: When, µs since the epoch.
        author, reason: Who asked, and why.
    """

    key: str
    kind: RecordKind
    incarnation: int
    sequence: int
    marked_us: int
    author: str
    reason: str


def letter_key(partition: str, offset: int) -> str:
    """Name of a letter, for example `moescope.routing-3:4711`."""
    return f"{partition}:{offset}"


def dead_letter_record(letter: DeadLetter, topic: str) -> TopicRecord:
    """The record that publishes a letter.

    Args:
        letter: With its payload.
        topic: Where the record was read from, for example `moescope.routing`.
    """
    is_whole = len(letter.payload) <= LARGEST_PAYLOAD
    state = PayloadState.WHOLE if is_whole else PayloadState.OMITTED
    return _record(
        letter_key(letter.partition, letter.offset),
        letter.payload if is_whole else None,
        {
            "kind": RecordKind.LETTER.value,
            "topic": topic,
            "partition": letter.partition,
            "offset": str(letter.offset),
            "append-time-us": str(letter.append_time_us),
            "reason": letter.reason,
            "detail": letter.detail[:_LONGEST_DETAIL],
            "sha256": sha256(letter.payload).hexdigest(),
            "payload": state.value,
        },
    )


def replay_record(mark: ReplayMark) -> TopicRecord:
    """The record that says what became of a letter's replay."""
    return _record(
        mark.key,
        None,
        {
            "kind": mark.kind.value,
            "incarnation": str(mark.incarnation),
            "sequence": str(mark.sequence),
            "marked-us": str(mark.marked_us),
            "author": mark.author,
            "reason": mark.reason[:_LONGEST_DETAIL],
        },
    )


def read_record(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> PublishedLetter | ReplayMark | None:
    """What a record of the topic says; None for one that is nobody's of moescope's."""
    texts = _texts(headers)
    try:
        kind = RecordKind(texts["kind"])
        if kind is RecordKind.LETTER:
            return _letter(value, texts)
        return ReplayMark(
            key=(key or b"").decode(),
            kind=kind,
            incarnation=_number(texts["incarnation"]),
            sequence=_number(texts["sequence"]),
            marked_us=_number(texts["marked-us"]),
            author=texts["author"],
            reason=texts["reason"],
        )
    except (KeyError, ValueError):
        return None


def _letter(value: bytes | None, texts: Mapping[str, str]) -> PublishedLetter:
    letter = DeadLetter(
        partition=texts["partition"],
        offset=_number(texts["offset"]),
        append_time_us=_number(texts["append-time-us"]),
        reason=texts["reason"],
        detail=texts["detail"],
        payload=value or b"",
    )
    return PublishedLetter(
        letter=letter,
        topic=texts["topic"],
        sha256=texts["sha256"],
        payload_state=PayloadState(texts["payload"]),
    )


def _record(key: str, value: bytes | None, headers: Mapping[str, str]) -> TopicRecord:
    named = [(_PREFIX + name, text.encode("utf-8", "replace")) for name, text in headers.items()]
    return TopicRecord(key.encode(), value, named)


def _texts(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, str]:
    return {
        name.removeprefix(_PREFIX): value.decode("utf-8", "replace")
        for name, value in headers
        if name.startswith(_PREFIX) and value is not None
    }


def _number(text: str) -> int:
    number = int(text)
    if not -_LARGEST_NUMBER <= number < 2 * _LARGEST_NUMBER:
        raise ValueError("no number of 64 bits")
    return number
