"""Every partition of the routing topic as a source, with no group: its reader is the only one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import KafkaError

from moescope.core.emission import LIVE_DOMAIN
from moescope.core.errors import DependencyUnreachableError
from moescope.core.kafka import Topic, explain, missing_topic, open_consumer, topic_name
from moescope.core.kafka.broker_watch import BrokerWatch
from moescope.core.kafka.places import partition_name, partition_number
from moescope.processors.sources.topic_reader import CONSUMER_OPTIONS, TopicReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType
    from typing import Self

    from moescope.core.clock import Clock
    from moescope.core.self_metrics import SelfMetrics
    from moescope.core.settings import Settings
    from moescope.processors.sources.protocol import Poll

RETRY_SECONDS = 1.0


def _say_nothing(text: str) -> None:
    """For those who do not want to be told."""


class KafkaSource:
    """All partitions of `PREFIX.routing`, read from wherever their stored progress says.

    While no broker answers, nothing comes; when one does again, reading goes on.

    Args:
        settings: Name the brokers and the topics.
        metrics: Told of lag, gaps and buffers.
        clock: For pauses only.
        log: Told when the broker goes away and when it is back.
        patient: Whether a broker or a topic that is not there yet is waited for.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: SelfMetrics,
        clock: Clock,
        *,
        log: Callable[[str], None] = _say_nothing,
        patient: bool = True,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._patient = patient
        self._topic = topic_name(settings, Topic.ROUTING)
        self._watch = BrokerWatch(log)
        self._reader = TopicReader(settings, self._topic, metrics, clock, self._watch)
        self._consumer: Any = None
        self._tried_at = float("-inf")

    @property
    def trouble(self) -> str:
        """Why nothing comes at present, and what to do about it; empty: all is well."""
        return self._watch.trouble

    def __enter__(self) -> Self:
        """The source itself; the consumer is opened when partitions are asked for."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the consumer."""
        self.close()

    def partitions(self) -> dict[str, str]:
        """Name → watermark domain of every partition of the topic.

        Raises:
            BrokerRefusedError: Who we are is not accepted.
            DependencyUnreachableError: There is no broker or no topic, and it is not waited for.
            LogRewoundError: The topic ends before the place that is read.
        """
        now = self._clock.monotonic()
        if now - self._tried_at >= RETRY_SECONDS:
            self._tried_at = now
            self._assign()
        self._reader.pump()
        return {partition_name(self._topic, number): LIVE_DOMAIN for number in self._reader.numbers}

    def log_id(self, partition: str, known: str) -> str:
        """The topic's id, which one of the same name that is made later does not have."""
        return self._reader.topic_id(partition_number(partition), known)

    def poll(self, partition: str, offset: int, max_records: int, max_bytes: int) -> Poll:
        """Read from an offset on, as far as records are here."""
        return self._reader.poll(partition_number(partition), offset, max_records, max_bytes)

    def committed(self, partition: str, replay_from: int) -> None:
        """Places are kept in the store."""

    def revoked(self) -> Collection[str]:
        """None: nobody takes a partition away."""
        return ()

    def claim(self) -> None:
        """Nobody else can have them."""

    def unread(self, held: Collection[str]) -> frozenset[str]:
        """Partitions that are late because nobody read them."""
        return frozenset(self._reader.unread().union(held))

    def settled(self) -> bool:
        """Whether everything that is in the topic now was handed out."""
        return self._reader.is_read()

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close(autocommit=False)
            self._consumer = None

    def _assign(self) -> None:
        """Open the consumer, and read partitions that are there and not read yet."""
        try:
            if self._consumer is None:
                self._consumer = open_consumer(self._settings, **CONSUMER_OPTIONS)
                self._reader.use(self._consumer)
            numbers = self._numbers()
        except DependencyUnreachableError as error:
            if not self._patient:
                raise
            self._watch.lost(error)
            return
        if set(numbers) != set(self._reader.numbers):
            self._consumer.assign([TopicPartition(self._topic, number) for number in numbers])
            self._reader.give(numbers)

    def _numbers(self) -> Collection[int]:
        """Partitions of the topic, of which there is one at least."""
        try:
            numbers: Collection[int] = self._consumer.partitions_for_topic(self._topic)
        except KafkaError as error:
            raise explain(error, f"looking for {self._topic}", self._settings) from error
        if not numbers:
            raise missing_topic(self._topic)
        return numbers
