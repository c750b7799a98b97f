"""Dead letters as the topic holds them: read from its beginning to its present end."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moescope.console.kafka.clients import explained_errors
from moescope.core.clock import SystemClock
from moescope.core.dead_letter_reasons import IN_TABLE_ONLY, DeadLetterReason
from moescope.core.errors import InputError
from moescope.core.kafka import (
    BrokerUnreachableError,
    Topic,
    TopicMissingError,
    open_consumer,
    topic_name,
)
from moescope.core.kafka.dead_letters import PublishedLetter, RecordKind, ReplayMark, read_record
from moescope.core.kafka.ends import end_offsets, first_offsets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from moescope.core.settings import Settings

_POLL_MS: Final = 500
_ASK_MS: Final = 10_000
_LETTERS_OF: Final = (
    "SELECT append_time, partition, log_offset, detail FROM dead_letters "
    "WHERE reason = '{reason}' ORDER BY append_time"
)


class Place(NamedTuple):
    """Where a record lies in the dead-letter topic."""

    partition: int
    offset: int


class TopicEntry(NamedTuple):
    """One record of the topic that is moescope's, and where it lies."""

    place: Place
    published_us: int
    says: PublishedLetter | ReplayMark


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLetter:
    """A letter and what became of it.

    Attributes:
        published: Without its payload, which `read_payloads` reads again.
        payload_bytes: Its size.
        place: Of the letter's record.
        published_us: When the broker got it, µs since the epoch.
        mark: The newest of its replay; None: it was never replayed.
    """

    published: PublishedLetter
    payload_bytes: int
    place: Place
    published_us: int
    mark: ReplayMark | None = None

    @property
    def key(self) -> str:
        """Names the letter."""
        return self.published.key

    @property
    def is_replayed(self) -> bool:
        """Whether its batch was written again, and acknowledged."""
        return self.mark is not None and self.mark.kind is RecordKind.REPLAYED


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which letters are meant.

    Attributes:
        keys: Only these; empty: any.
        reason: Only with this reason; empty: any.
        since_us: Only published since then, µs since the epoch; None: at any time.
        newest: Only so many, the newest; 0: all.
    """

    keys: frozenset[str] = frozenset()
    reason: str = ""
    since_us: int | None = None
    newest: int = 0

    def takes(self, letter: PublishedLetter) -> bool:
        """Whether a letter is meant, its time aside."""
        named = not self.keys or letter.key in self.keys
        return named and self.reason in {"", letter.letter.reason}


def full_key(settings: Settings, text: str) -> str:
    """A letter's key as people type it: `moescope.routing-3:17`, or `3:17` for short.

    Raises:
        InputError: It is none.
    """
    partition, colon, offset = text.rpartition(":")
    if not colon or not partition or not offset.isdecimal():
        raise InputError(
            f"{text!r} does not name a dead letter.",
            why="A letter is named by where its record lay: PARTITION:OFFSET.",
            next_step="`moescope kafka dlq-list` shows them, for example 3:17.",
        )
    if partition.isdecimal():
        partition = f"{topic_name(settings, Topic.ROUTING)}-{partition}"
    return f"{partition}:{int(offset)}"


def known_reason(text: str) -> str:
    """A reason as people type it; empty stays empty.

    Raises:
        InputError: No letter of the topic has it.
    """
    in_topic = [each for each in DeadLetterReason if each not in IN_TABLE_ONLY]
    if text in IN_TABLE_ONLY:
        raise InputError(
            f"Dead letters with the reason {text!r} are in the store's table only.",
            why="They tell of the deltas topic, and nothing could replay them.",
            next_step="Ask the store with `moescope sql`: " + _LETTERS_OF.format(reason=text),
        )
    if text and text not in in_topic:
        raise InputError(
            f"No dead letter has the reason {text!r}.",
            why=f"Those of the topic have one of: {', '.join(in_topic)}.",
            next_step="Give one of these, or none for all letters.",
        )
    return text


def no_letter(keys: Collection[str], topic: str) -> InputError:
    """The error that says of letters that they are not there.

    Args:
        keys: Of the letters.
        topic: Name of the dead-letter topic.
    """
    return InputError(
        f"There is no dead letter {', '.join(sorted(keys))} in {topic}.",
        why="It was never published there, its time there is over, or it is not among those that "
        "--only and --since leave.",
        next_step="`moescope kafka dlq-list` shows what is there; the store's table "
        "dead_letters may still hold it.",
    )


class LetterTopic:
    """The dead-letter topic, for reading.

    Args:
        settings: Name broker and topic.
        consumer: Of the library; the caller closes it.

    Raises:
        TopicMissingError: It does not exist.
    """

    def __init__(self, settings: Settings, consumer: Any) -> None:
        from kafka import TopicPartition

        self._consumer = consumer
        self._patience_s = settings["kafka.request_timeout"] + settings["kafka.connect_timeout"]
        self.name = topic_name(settings, Topic.DLQ)
        numbers = consumer.partitions_for_topic(self.name)
        if not numbers:
            raise TopicMissingError(
                f"The topic {self.name} does not exist.",
                next_step="Make the topics: `moescope kafka topics-apply --yes`.",
            )
        self._places = [TopicPartition(self.name, number) for number in sorted(numbers)]

    def entries(self, since_us: int | None = None) -> Iterator[TopicEntry]:
        """Everything of moescope's from a time on to the present end, in the order of places."""
        for each in self._records(since_us):
            says = read_record(each.key, each.value, each.headers)
            if says is not None:
                place = Place(each.partition, each.offset)
                yield TopicEntry(place, each.timestamp * 1_000, says)

    def letters(self, selection: Selection, *, needs_every_mark: bool = False) -> list[FoundLetter]:
        """The letters that are meant, oldest first; one that came twice is there once.

        Args:
            selection: Which.
            needs_every_mark: Read from the beginning even where only later letters are meant: a
                letter that was published once more may lie behind the mark of its replay.
        """
        found: dict[str, FoundLetter] = {}
        marks: dict[str, ReplayMark] = {}
        order: deque[str] = deque()
        since_us = selection.since_us
        for entry in self.entries(None if needs_every_mark else since_us):
            says = entry.says
            if isinstance(says, ReplayMark):
                marks[says.key] = says
            elif says.key not in found and selection.takes(says):
                found[says.key] = _without_payload(entry, says)
                order.append(says.key)
                if selection.newest and len(order) > selection.newest:
                    del found[order.popleft()]
        return [
            replace(each, mark=marks.get(each.key))
            for each in found.values()
            if since_us is None or each.published_us >= since_us // 1_000 * 1_000
        ]

    def payloads(self, places: Collection[Place]) -> Iterator[tuple[Place, bytes]]:
        """The payloads of letters, in the order of places, read once more."""
        wanted = set(places)
        for number in sorted({place.partition for place in wanted}):
            offsets = [place.offset for place in wanted if place.partition == number]
            for each in self._read(self._places[number], min(offsets), max(offsets) + 1):
                if (place := Place(number, each.offset)) in wanted:
                    yield place, each.value or b""

    def _records(self, since_us: int | None) -> Iterator[Any]:
        for place in self._places:
            end = end_offsets(self._consumer, [place], _ASK_MS)[place]
            begin = first_offsets(self._consumer, [place], _ASK_MS)[place]
            if since_us is not None:
                later = self._consumer.offsets_for_times({place: since_us // 1_000})[place]
                begin = end if later is None else later.offset
            yield from self._read(place, begin, end)

    def _read(self, place: Any, begin: int, end: int) -> Iterator[Any]:
        """Committed records of a partition from `begin` up to (excluding) `end`."""
        self._consumer.assign([place])
        self._consumer.seek(place, begin)
        clock, position = SystemClock(), begin
        heard = clock.monotonic()
        while position < end:
            for each in self._consumer.poll(_POLL_MS).get(place, ()):
                if each.offset < end:
                    yield each
            if (now_at := self._consumer.position(place)) != position:
                position, heard = now_at, clock.monotonic()
            elif clock.monotonic() - heard > self._patience_s:
                raise BrokerUnreachableError(
                    f"The broker gives no more of {self.name}.",
                    why=f"Record {position} of {end} did not come in {self._patience_s:g} s.",
                    next_step="Check the broker, and try again.",
                )


@contextmanager
def opened_letters(settings: Settings) -> Iterator[LetterTopic]:
    """The dead-letter topic.

    Raises:
        TopicMissingError: It does not exist.
        MoescopeError: The broker cannot be reached, or refuses.
    """
    consumer = open_consumer(settings)
    try:
        with explained_errors(settings, "reading the dead letters"):
            yield LetterTopic(settings, consumer)
    finally:
        consumer.close()


def _without_payload(entry: TopicEntry, published: PublishedLetter) -> FoundLetter:
    return FoundLetter(
        published=replace(published, letter=replace(published.letter, payload=b"")),
        payload_bytes=len(published.letter.payload),
        place=entry.place,
        published_us=entry.published_us,
    )
