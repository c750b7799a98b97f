"""The deltas topic as the owner reads it: records in order, gaps, and where partitions end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moescope.core.emission_records import EmissionRecord
from moescope.core.errors import DependencyUnreachableError
from moescope.core.kafka import Topic, explain, missing_topic, open_consumer, topic_name
from moescope.core.kafka.ends import end_offsets, first_offsets
from moescope.core.kafka.places import partition_name
from moescope.storage.deltas.errors import DeltasRewoundError

if TYPE_CHECKING:
    from moescope.core.kafka.broker_watch import BrokerWatch
    from moescope.core.settings import Settings

FETCHED_RECORDS: Final = 64
POLL_MS: Final = 200
ASK_MS: Final = 2_000
_OPTIONS: Final = {
    # A place that is gone has to be told, not silently replaced.
    "auto_offset_reset": "none",
    "max_poll_records": FETCHED_RECORDS,
    # A broker answers in turn: asking for ends waits for what was asked for before.
    "fetch_max_wait_ms": 100,
}


@dataclass(frozen=True, slots=True)
class DeltasRecord:
    """One record of the topic, and its place there."""

    offset: int
    append_time_us: int
    record: EmissionRecord


@dataclass(frozen=True, slots=True)
class DeltasGap:
    """Records that were gone before they were read: from `first` up to (excluding) `end`."""

    first: int
    end: int


class DeltasTopic:
    """Reads the one partition of the topic; while no broker answers, nothing comes.

    Args:
        settings: Name the brokers and topics.
        next_offset: Where to begin; None: at the beginning.
        watch: Told when the broker goes and comes.
    """

    def __init__(self, settings: Settings, next_offset: int | None, watch: BrokerWatch) -> None:
        self._settings = settings
        self._watch = watch
        self._topic = topic_name(settings, Topic.DELTAS)
        self._routing = topic_name(settings, Topic.ROUTING)
        self._next = next_offset
        self._consumer: Any = None
        self._place: Any = None

    @property
    def name(self) -> str:
        """Of the partition."""
        return partition_name(self._topic, 0)

    @property
    def next_offset(self) -> int | None:
        """Of the record that comes next; None while that is not known."""
        return self._next

    def fetch(self) -> list[DeltasRecord | DeltasGap]:
        """What comes next, after a short wait if there is nothing.

        Raises:
            DeltasRewoundError: The topic ends before the place that is read.
            BrokerRefusedError: Who we are is not accepted.
            DependencyUnreachableError: There is no broker, or no topic; to be tried again.
        """
        from kafka.errors import (  # noqa: PLC0415 (imported when a client is opened)
            KafkaError,
            LogTruncationError,
            OffsetOutOfRangeError,
        )

        try:
            consumer = self._opened()
            fetched = consumer.poll(timeout_ms=POLL_MS).get(self._place, [])
            position = consumer.position(self._place, timeout_ms=ASK_MS)
        except OffsetOutOfRangeError:
            return self._find_place()
        except LogTruncationError as error:
            raise self._rewound(str(error)) from error
        except KafkaError as error:
            raise self._explained(error, f"reading {self._topic}") from error
        self._watch.found()
        records: list[DeltasRecord | DeltasGap] = [_record(each) for each in fetched]
        if position is not None:
            # Behind the marks of transactions, too.
            self._next = position
        return records

    def ends(self) -> tuple[int, dict[str, int]]:
        """Where the topic ends, and every partition of the routing topic, by name.

        Raises:
            DependencyUnreachableError: Nobody told; to be tried again.
        """
        from kafka import TopicPartition  # noqa: PLC0415 (imported when a client is opened)
        from kafka.errors import KafkaError  # noqa: PLC0415 (imported when a client is opened)

        doing = f"asking for the ends of {self._topic} and {self._routing}"
        try:
            consumer = self._opened()
            numbers = consumer.partitions_for_topic(self._routing)
            self._require(numbers, self._routing)
            places = [TopicPartition(self._routing, number) for number in sorted(numbers)]
            ends = end_offsets(consumer, [self._place, *places], ASK_MS)
        except KafkaError as error:
            raise self._explained(error, doing) from error
        self._watch.found()
        routing = {partition_name(each.topic, each.partition): ends[each] for each in places}
        return ends[self._place], routing

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close(autocommit=False)
            self._consumer = None

    def _opened(self) -> Any:  # noqa: ANN401 (untyped library)
        if self._consumer is None:
            try:
                consumer = open_consumer(self._settings, **_OPTIONS)
            except DependencyUnreachableError as error:
                self._watch.lost(error)
                raise
            try:
                self._assign(consumer)
            except BaseException:
                consumer.close(autocommit=False)
                raise
            self._consumer = consumer
        return self._consumer

    def _assign(self, consumer: Any) -> None:  # noqa: ANN401 (untyped library)
        from kafka import TopicPartition  # noqa: PLC0415 (imported when a client is opened)

        self._require(consumer.partitions_for_topic(self._topic), self._topic)
        self._place = TopicPartition(self._topic, 0)
        consumer.assign([self._place])
        if self._next is None:
            self._next = first_offsets(consumer, [self._place], ASK_MS)[self._place]
        consumer.seek(self._place, self._next)

    def _require(self, found: object, name: str) -> None:
        if not found:
            missing = missing_topic(name)
            self._watch.lost(missing)
            raise missing

    def _find_place(self) -> list[DeltasRecord | DeltasGap]:
        """Go on where the topic begins now, when what would come next is gone."""
        from kafka.errors import KafkaError  # noqa: PLC0415 (imported when a client is opened)

        first = self._next or 0
        try:
            begin = first_offsets(self._consumer, [self._place], ASK_MS)[self._place]
            end = end_offsets(self._consumer, [self._place], ASK_MS)[self._place]
        except KafkaError as error:
            raise self._explained(error, f"asking for the beginning of {self._topic}") from error
        if first > end:
            raise self._rewound(f"It ends at record {end}, but {first} were applied.")
        self._consumer.seek(self._place, max(first, begin))
        self._next = max(first, begin)
        return [DeltasGap(first, begin)] if begin > first else []

    def _explained(self, error: BaseException, doing: str) -> Exception:
        explained = explain(error, doing, self._settings)
        if isinstance(explained, DependencyUnreachableError):
            self._watch.lost(explained)
        return explained

    def _rewound(self, why: str) -> DeltasRewoundError:
        return DeltasRewoundError(
            f"The topic {self._topic} holds fewer records than the store has applied.",
            why=f"{why} The topic was made anew, or the brokers lost acknowledged records.",
            next_step="Stop all processors, start the store once with `moescope run store "
            "--reset-processors`, then start the processors: they go on from what is stored.",
        )


def _record(record: Any) -> DeltasRecord:  # noqa: ANN401 (untyped library)
    headers = [(name, value or b"") for name, value in record.headers]
    return DeltasRecord(
        record.offset,
        max(record.timestamp or 0, 0) * 1_000,
        EmissionRecord(record.key or b"", record.value or b"", headers),
    )
