"""Reads partitions of a topic ahead, whatever the broker does meanwhile."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import (
    CorruptRecordError,
    FencedInstanceIdError,
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

from moescope.core.clock import NO_TIME
from moescope.core.errors import DependencyUnreachableError
from moescope.core.kafka import explain
from moescope.core.kafka.ends import end_offsets, first_offsets
from moescope.core.kafka.places import partition_name
from moescope.core.kafka.record_times import append_time_us
from moescope.processors.sources.batch_log import LogRewoundError
from moescope.processors.sources.presence import TopicPresence
from moescope.processors.sources.protocol import Poll, SourceRecord
from moescope.processors.sources.read_ahead import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from moescope.core.clock import Clock
    from moescope.core.kafka.broker_watch import BrokerWatch
    from moescope.core.self_metrics import SelfMetrics
    from moescope.core.settings import Settings

FETCHED_RECORDS = 500
PUMP_SECONDS = 0.02
HUNGRY_SECONDS = 0.002
LOOK_SECONDS = 1.0
AWAY_LOOK_SECONDS = 3.0
LOOK_TIMEOUT_MS = 2_000
BACKLOG_US = 10_000_000
"""What is read so long after it was appended is a backlog."""

_NEXT_STEP = (
    "Use a new topic prefix (kafka.topic_prefix) everywhere: the store goes on with it. Or give up "
    "what is stored: stop everything, start the store once with an empty data directory, where "
    "there are processors with `moescope run store --reset-processors`, then start the processors. "
    "Records of the new topic would be taken for those that are stored."
)

UNREADABLE = (CorruptRecordError, UnicodeDecodeError)
"""A checksum that is wrong, or the name of a header that is no text."""

CONSUMER_OPTIONS = {
    # A place that is gone has to be told, not silently replaced.
    "auto_offset_reset": "none",
    "max_poll_records": FETCHED_RECORDS,
    # A broker answers in turn: asking for ends waits for what was asked for before.
    "fetch_max_wait_ms": 100,
    # Fetches name a topic, not its id: only fresh metadata tell that it was made anew meanwhile.
    "metadata_max_age_ms": 3_000,
}


class TopicReader:
    """Buffers of the partitions that are read, filled from one consumer.

    One thread uses it.

    Args:
        settings: Bound the buffers, and name the brokers.
        topic: Name of the topic.
        metrics: Told of lag, gaps and buffers.
        clock: Tells when to ask for the partitions' ends again.
        watch: Told when the broker goes and comes.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        metrics: SelfMetrics,
        clock: Clock,
        watch: BrokerWatch,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._metrics = metrics
        self._clock = clock
        self._watch = watch
        self._buffer_bytes = settings["kafka.buffer_bytes"]
        self._consumer: Any = None
        self._ahead: dict[int, ReadAhead] = {}
        self._pumped_at = self._looked_at = float("-inf")
        self._unreadable: tuple[Any, int] | None = None
        self._topic_id = ""
        self._presence = TopicPresence(settings, topic, clock, watch)

    @property
    def numbers(self) -> Collection[int]:
        """Partitions that are read."""
        return self._ahead.keys()

    def use(self, consumer: Any) -> None:  # noqa: ANN401 (untyped library)
        """Read from this consumer from now on."""
        self._consumer = consumer
        self._presence.use(consumer)

    def give(self, numbers: Iterable[int]) -> None:
        """Read these partitions, too, once somebody asks for them."""
        for number in numbers:
            if number not in self._ahead:
                self._ahead[number] = ReadAhead(self._clock.monotonic())
                self._looked_at = float("-inf")

    def take_away(self, numbers: Iterable[int]) -> None:
        """Read these partitions no longer."""
        for number in numbers:
            if self._ahead.pop(number, None) is not None:
                self._metrics.forget("moescope_processor_lag_records", partition=self._name(number))

    def poll(self, number: int, offset: int, max_records: int, max_bytes: int) -> Poll:
        """Records of a partition from an offset on, as far as they are here."""
        ahead = self._ahead.get(number)
        if ahead is None or self._consumer is None:
            return Poll([], [], offset, exhausted=True, sealed=False)
        if ahead.handed_to != offset and not self._reposition(number, ahead, offset):
            return Poll([], [], offset, exhausted=True, sealed=False)
        if not len(ahead):
            self.pump(HUNGRY_SECONDS)
        poll = ahead.take(max_records, max_bytes)
        if ahead.held_bytes * 2 <= self._buffer_bytes:
            self._set_paused(number, paused=False)
        return poll

    @contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Work with the client; what may pass is waited for, the rest is raised in our words.

        Every call that asks a broker for something goes through here.

        Args:
            doing: What is tried, to go behind "while".

        Raises:
            kafka.errors.FencedInstanceIdError: Another member of the group has our name.
            MoescopeError: What no waiting mends.
        """
        try:
            yield
        except FencedInstanceIdError:
            raise
        except NoOffsetForPartitionError:
            # Given a moment ago: its place is set when somebody asks for it.
            pass
        except KafkaError as error:
            explained = explain(error, doing, self._settings)
            if not isinstance(explained, DependencyUnreachableError):
                raise explained from error
            self._watch.lost(explained)

    def pump(self, interval: float = PUMP_SECONDS, *, wait_ms: int = 0) -> None:
        """Fetch what there is, unless that was done a moment ago.

        Args:
            interval: Seconds since the last time before which nothing is done.
            wait_ms: How long the client may take for what is under way.

        Raises:
            LogRewoundError: The topic ends before the place that is read.
            BrokerRefusedError: Who we are is not accepted.
            kafka.errors.FencedInstanceIdError: Another member of the group has our name.
        """
        now = self._clock.monotonic()
        if self._consumer is None or now - self._pumped_at < interval:
            return
        pause = AWAY_LOOK_SECONDS if self._watch.is_away else LOOK_SECONDS
        if now - self._looked_at >= pause:
            self.look_at_ends()
        self._fetch(wait_ms)
        self._pumped_at = self._clock.monotonic()

    def _fetch(self, wait_ms: int) -> None:
        with self.asking(f"reading {self._topic}"):
            try:
                fetched = self._consumer.poll(timeout_ms=wait_ms)
            except OffsetOutOfRangeError as error:
                self._find_place(error.args[0])
            except LogTruncationError as error:
                raise rewound(self._topic, str(error)) from error
            except UNREADABLE as error:
                self._step_over_unreadable(error)
            else:
                # Before anything of what came is taken: it may be another topic's.
                self._note_topic_id()
                for partition, records in fetched.items():
                    self._add(partition.partition, records)

    def look_at_ends(self) -> bool:
        """Ask where the partitions end; gives whether the broker told.

        Raises:
            LogRewoundError: One ends before the place that is read.
            BrokerRefusedError: Who we are is not accepted.
        """
        asked_at = self._looked_at = self._clock.monotonic()
        places = [self._place(number) for number in self._ahead]
        if self._consumer is None or not places:
            return False
        with self.asking(f"asking for the end of {self._topic}"):
            ends = end_offsets(self._consumer, places, LOOK_TIMEOUT_MS)
            self._note_topic_id()
            for place, end in ends.items():
                ahead = self._ahead[place.partition]
                ahead.note_end(end, asked_at)
                if ahead.is_rewound:
                    raise self._rewound(place.partition, end, ahead.fetched_to)
                if not len(ahead) and ahead.handed_to is not None and ahead.fetched_to < end:
                    self._pass_marks(place, ahead)
            self._watch.found()
            self._report()
            return True
        return False

    def topic_id(self, number: int, known: str) -> str:
        """The id of the topic; what is known where the broker tells none.

        Args:
            number: Partition of which it is asked.
            known: Id of the topic whose records were processed, or empty.

        Raises:
            LogRewoundError: It is another topic.
        """
        self._note_topic_id()
        if known and self._topic_id and self._topic_id != known:
            raise made_anew(self._name(number), known, self._topic_id)
        return self._topic_id or known

    def _note_topic_id(self) -> None:
        cluster = getattr(getattr(self._consumer, "_client", None), "cluster", None)
        told = None if cluster is None else cluster.topic_id(self._topic)
        if told is None:
            # There is no such topic now, or a broker that is too old to tell.
            return
        if self._topic_id and self._topic_id != str(told):
            raise made_anew(self._topic, self._topic_id, str(told))
        self._topic_id = str(told)

    def look_for_topic(self) -> None:
        """Tell whether somebody answers, where no partition is read and no end asked for."""
        self._presence.look()

    def is_read(self) -> bool:
        """Whether everything that is there now was handed out."""
        return self.look_at_ends() and all(ahead.is_read for ahead in self._ahead.values())

    def unread(self) -> set[str]:
        """Names of partitions in which records may wait that were not handed out."""
        now = self._clock.monotonic()
        return {self._name(number) for number, ahead in self._ahead.items() if ahead.is_unread(now)}

    def _add(self, number: int, records: list[Any]) -> None:
        ahead = self._ahead.get(number)
        # Before somebody asked, the client stands anywhere.
        if ahead is None or ahead.handed_to is None:
            return
        ahead.add([_source_record(record) for record in records])
        if ahead.held_bytes > self._buffer_bytes:
            self._set_paused(number, paused=True)

    def _reposition(self, number: int, ahead: ReadAhead, offset: int) -> bool:
        """Go to an offset; not where the partition was taken a moment ago."""
        place = self._place(number)
        if place not in self._consumer.assignment():
            return False
        ahead.restart(offset)
        self._consumer.seek(place, offset)
        self._set_paused(number, paused=False)
        return True

    def _set_paused(self, number: int, *, paused: bool) -> None:
        place = self._place(number)
        if place not in self._consumer.assignment():
            return
        if paused:
            self._consumer.pause(place)
        elif place in self._consumer.paused():
            self._consumer.resume(place)

    def _step_over_unreadable(self, error: Exception) -> None:
        """Pass over a record that the client cannot read, and the rest of its batch after it.

        The client does not say whose record it was, and would go round in a circle with what it
        has begun to read of it: both are found where it keeps it.
        """
        begun = getattr(getattr(self._consumer, "_fetcher", None), "_next_partition_records", None)
        if begun is None:
            raise error
        begun.drain()
        ahead = self._ahead.get(begun.topic_partition.partition)
        if ahead is None or ahead.handed_to is None:
            return
        bad = ahead.fetched_to
        if self._unreadable != (begun.topic_partition, bad):
            # The fault may have come on the way: fetched once more.
            self._unreadable = (begun.topic_partition, bad)
        else:
            ahead.miss(bad + 1, f"unreadable ({type(error).__name__})")
            self._consumer.seek(begun.topic_partition, bad + 1)

    def _find_place(self, out_of_range: dict[Any, int]) -> None:
        """Go on where the log begins now, when what would come next is gone."""
        for place, offset in out_of_range.items():
            ahead = self._ahead.get(place.partition)
            if ahead is None or ahead.fetched_to != offset:
                continue
            begin = first_offsets(self._consumer, [place], LOOK_TIMEOUT_MS)[place]
            end = end_offsets(self._consumer, [place], LOOK_TIMEOUT_MS)[place]
            if offset > end:
                raise self._rewound(place.partition, end, offset)
            if offset < begin:
                ahead.miss(begin, "removed by the topic's retention", begins_there=True)
                self._consumer.seek(place, begin)

    def _pass_marks(self, place: Any, ahead: ReadAhead) -> None:  # noqa: ANN401 (untyped library)
        """Where only marks of transactions are left, the client stands behind them."""
        if place in self._consumer.assignment():
            position = self._consumer.position(place, timeout_ms=LOOK_TIMEOUT_MS)
            if position is not None:
                ahead.skip_to(position)

    def _report(self) -> None:
        late_us = self._clock.now_us() - BACKLOG_US
        behind = False
        for number, ahead in self._ahead.items():
            self._metrics.set(
                "moescope_processor_lag_records", ahead.lag, partition=self._name(number)
            )
            appended_us = ahead.appended_us
            behind |= ahead.lag > 0 and appended_us is not None and NO_TIME < appended_us < late_us
        held = sum(ahead.held_bytes for ahead in self._ahead.values())
        self._metrics.set("moescope_processor_buffered_bytes", held)
        self._metrics.set("moescope_processor_catching_up", float(behind))

    def _rewound(self, number: int, end: int, offset: int) -> LogRewoundError:
        return rewound(self._name(number), f"It ends at record {end}, but {offset} were read.")

    def _name(self, number: int) -> str:
        return partition_name(self._topic, number)

    def _place(self, number: int) -> Any:  # noqa: ANN401 (untyped library)
        return TopicPartition(self._topic, number)


def _source_record(record: Any) -> SourceRecord:  # noqa: ANN401 (untyped library)
    has_time = record.timestamp is not None and record.timestamp >= 0
    arrival_us = record.timestamp * 1_000 if has_time else NO_TIME
    time_us = append_time_us(arrival_us, record.headers) if has_time else NO_TIME
    return SourceRecord(record.offset, time_us, record.value or b"", arrival_us)


def rewound(place: str, why: str) -> LogRewoundError:
    """The error of a topic that is not the one that was read."""
    return LogRewoundError(
        f"{place} holds fewer records than were processed from it.",
        why=f"{why} The topic was made anew, or the brokers lost acknowledged records.",
        next_step=_NEXT_STEP,
    )


def made_anew(place: str, before: str, now: str) -> LogRewoundError:
    """The error of a topic that has the name of the one that was read, and is another."""
    return LogRewoundError(
        f"{place} is not the topic whose records were processed.",
        why=f"That one had the id {before}, this one has {now}: it was made anew.",
        next_step=_NEXT_STEP,
    )
