"""Writing dead letters to the routing topic again, each once, whatever is interrupted.

First the letter is marked `replaying`, with the identity that its batch is given; then the batch
is written; then the letter is marked `replayed`. Who finds only the first mark writes the batch
once more under the same identity, which processors count once. The marks are written by one
transactional producer, so that of two commands at work at once the earlier one is refused.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from moescope.console.kafka.clients import explained_errors
from moescope.console.kafka.letters import no_letter, opened_letters
from moescope.console.kafka.replay_batches import has_late_rows, readable_batch, renumbered
from moescope.core.clock import NO_TIME
from moescope.core.dead_letter_reasons import WITHOUT_RECORD, DeadLetterReason
from moescope.core.errors import InputError, MoescopeError
from moescope.core.kafka import Topic, open_producer, topic_name
from moescope.core.kafka.dead_letters import (
    PayloadState,
    RecordKind,
    ReplayMark,
    replay_record,
)
from moescope.core.kafka.record_times import times_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from moescope.console.kafka.letters import FoundLetter, LetterTopic, Selection
    from moescope.core.batch import RoutingBatch
    from moescope.core.clock import Clock
    from moescope.core.settings import Settings

CHUNK_LETTERS: Final = 256
CHUNK_BYTES: Final = 16 << 20
MAYBE_COUNTED: Final = frozenset({DeadLetterReason.SEQUENCE_TOO_OLD})
"""Reasons of letters that may be counted already: they are replayed only when they are named."""
_CLOSE_SECONDS: Final = 5.0


class ReplayTakenOverError(InputError):
    """Another command replays dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOrder:
    """What is to be replayed, and by whom.

    Attributes:
        again: Also what was replayed before; it counts once more.
        incarnation: Of the batches that are written, unused so far.
    """

    selection: Selection
    again: bool
    incarnation: int
    author: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLine:
    """What became of one letter.

    Attributes:
        outcome: `replayed` or `left`.
        why: Why it was left; empty otherwise.
        node, incarnation, sequence: Identity of the batch that was written; None: none was.
        has_late_rows: Whether rows of it are so old that they are counted as late.
    """

    key: str
    outcome: str
    why: str = ""
    node: str | None = None
    incarnation: int | None = None
    sequence: int | None = None
    has_late_rows: bool = False


@dataclass(slots=True)
class _Written:
    """A letter that can be replayed, and the batch that is written for it."""

    letter: FoundLetter
    node: str
    payload: bytes
    incarnation: int
    sequence: int
    logged_us: int
    has_late_rows: bool

    def mark(self, kind: RecordKind, order: ReplayOrder, now_us: int) -> ReplayMark:
        return ReplayMark(
            key=self.letter.key,
            kind=kind,
            incarnation=self.incarnation,
            sequence=self.sequence,
            marked_us=now_us,
            author=order.author,
            reason=order.reason,
        )


@dataclass(slots=True)
class _Numbers:
    """Sequence numbers of the new incarnation, from 0 for each node."""

    given: Counter[str] = field(default_factory=Counter)

    def next(self, node: str) -> int:
        number = self.given[node]
        self.given[node] += 1
        return number


def replay_letters(
    settings: Settings, order: ReplayOrder, clock: Clock, agree: Callable[[int], None]
) -> list[ReplayLine]:
    """Replay the letters that this version can use, and say of the others why not.

    Args:
        settings: Name broker and topics.
        order: What is to be replayed.
        clock: Dates marks and records.
        agree: Told how many letters will be tried, before; raises to stop it.

    Raises:
        InputError: A letter that is named is not there; nothing was done.
        ReplayTakenOverError: Another command began to replay meanwhile.
        MoescopeError: The broker cannot be reached, or refuses. What was replayed by then is
            marked; the same command goes on with the rest.
    """
    began_us = clock.now_us()
    with ExitStack() as closing:
        closing.enter_context(explained_errors(settings, "replaying dead letters"))
        closing.enter_context(_told_of_a_takeover())
        routing = _opened(closing, settings)
        marks = _opened(
            closing, settings, transactional_id=f"{topic_name(settings, Topic.DLQ)}-replay"
        )
        # From here on another command's marks are refused, and the letters can be trusted.
        marks.init_transactions()
        topic = closing.enter_context(opened_letters(settings))
        # Again, for it is the innermost that hears first what fails from here on.
        closing.enter_context(_told_of_a_takeover())
        found = topic.letters(order.selection, needs_every_mark=True)
        missing = order.selection.keys - {each.key for each in found}
        if missing:
            raise no_letter(missing, topic.name)
        chosen, lines = _chosen(found, order)
        agree(len(chosen))
        writer = _Writer(settings, order, clock, routing, marks)
        for written, left in _chunks(topic, chosen, order, began_us):
            lines += left
            writer.write(written)
            lines += [
                ReplayLine(
                    key=each.letter.key,
                    outcome="replayed",
                    node=each.node,
                    incarnation=each.incarnation,
                    sequence=each.sequence,
                    has_late_rows=each.has_late_rows,
                )
                for each in written
            ]
    return lines


def _chosen(
    found: Sequence[FoundLetter], order: ReplayOrder
) -> tuple[list[FoundLetter], list[ReplayLine]]:
    """The letters to try, and of the others why they are left."""
    chosen, left = [], []
    is_named = bool(order.selection.keys or order.selection.reason)
    for each in found:
        why = ""
        if each.is_replayed and not order.again:
            why = "replayed before; --again does it once more"
        elif each.published.payload_state is PayloadState.OMITTED:
            why = "its payload was too large to be kept"
        elif not each.payload_bytes and each.published.letter.reason in WITHOUT_RECORD:
            why = "it stands for records that are gone"
        elif each.published.letter.reason in MAYBE_COUNTED and not is_named:
            why = "may be counted already; name it, or its reason with --only"
        if why:
            left.append(ReplayLine(key=each.key, outcome="left", why=why))
        else:
            chosen.append(each)
    return chosen, left


def _chunks(
    topic: LetterTopic, chosen: Sequence[FoundLetter], order: ReplayOrder, now_us: int
) -> Iterator[tuple[list[_Written], list[ReplayLine]]]:
    """Letters that can be used, a bounded number at a time, and what is left of the others."""
    by_place = {each.place: each for each in chosen}
    numbers = _Numbers()
    written: list[_Written] = []
    left: list[ReplayLine] = []
    held = 0
    for place, payload in topic.payloads(by_place):
        letter = by_place[place]
        try:
            batch = readable_batch(payload)
        except MoescopeError as error:
            left.append(ReplayLine(key=letter.key, outcome="left", why=error.what))
            continue
        written.append(_rewritten(letter, batch, order, numbers, now_us))
        held += len(payload)
        if len(written) >= CHUNK_LETTERS or held >= CHUNK_BYTES:
            yield written, left
            written, left, held = [], [], 0
    yield written, left


def _rewritten(
    letter: FoundLetter, batch: RoutingBatch, order: ReplayOrder, numbers: _Numbers, now_us: int
) -> _Written:
    node = batch.header.node
    mark = letter.mark
    if mark is not None and mark.kind is RecordKind.REPLAYING:
        # Whether that batch was written, nobody knows: under its identity it counts once.
        incarnation, sequence = mark.incarnation, mark.sequence
    else:
        incarnation, sequence = order.incarnation, numbers.next(node)
    logged_us = letter.published.letter.append_time_us
    return _Written(
        letter=letter,
        node=node,
        payload=renumbered(batch, incarnation, sequence),
        incarnation=incarnation,
        sequence=sequence,
        logged_us=batch.header.encoded_at_us if logged_us == NO_TIME else logged_us,
        has_late_rows=has_late_rows(batch, now_us),
    )


class _Writer:
    def __init__(
        self,
        settings: Settings,
        order: ReplayOrder,
        clock: Clock,
        routing: Any,
        marks: Any,
    ) -> None:
        self._topics = topic_name(settings, Topic.ROUTING), topic_name(settings, Topic.DLQ)
        self._patience_s = settings["kafka.delivery_timeout"] + settings["kafka.connect_timeout"]
        self._order = order
        self._clock = clock
        self._routing = routing
        self._marks = marks

    def write(self, written: Sequence[_Written]) -> None:
        """Mark, write, and mark again."""
        if not written:
            return
        self._mark(RecordKind.REPLAYING, written)
        sent = [self._send(each) for each in written]
        for future in sent:
            future.get(self._patience_s)
        self._mark(RecordKind.REPLAYED, written)

    def _send(self, each: _Written) -> Any:
        # As if it had been delivered when it was first read: clocks of nodes are compared with it.
        now_us = self._clock.now_us()
        logged_us = now_us if each.logged_us == NO_TIME else each.logged_us
        return self._routing.send(
            self._topics[0],
            key=each.node.encode(),
            value=each.payload,
            headers=[times_header(logged_us, now_us)],
        )

    def _mark(self, kind: RecordKind, written: Sequence[_Written]) -> None:
        now_us = self._clock.now_us()
        self._marks.begin_transaction()
        for each in written:
            record = replay_record(each.mark(kind, self._order, now_us))
            self._marks.send(
                self._topics[1], key=record.key, value=record.value, headers=record.headers
            )
        self._marks.commit_transaction()


@contextmanager
def _told_of_a_takeover() -> Iterator[None]:
    """Say in words that a producer was fenced, however the library wraps that."""
    from kafka.errors import KafkaError

    try:
        yield
    except KafkaError as error:
        if not _is_fenced(error):
            raise
        raise ReplayTakenOverError(
            "Another dlq-replay took over.",
            why="Only one at a time may mark letters; the one that began last may.",
            next_step="Wait for it, then look at `moescope kafka dlq-list`.",
        ) from error


def _is_fenced(error: BaseException | None) -> bool:
    """Whether another producer has our transactional id: also as the cause of what came later."""
    from kafka.errors import InvalidProducerEpochError, ProducerFencedError

    if error is None:
        return False
    within = [each for each in error.args if isinstance(each, BaseException)]
    return isinstance(error, ProducerFencedError | InvalidProducerEpochError) or any(
        _is_fenced(each) for each in (*within, error.__cause__)
    )


def _opened(closing: ExitStack, settings: Settings, **options: object) -> Any:
    producer = open_producer(settings, **options)
    closing.callback(producer.close, timeout=_CLOSE_SECONDS)
    return producer
