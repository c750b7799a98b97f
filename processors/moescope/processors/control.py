"""The thresholds in force, followed from the topic to which the store's owner publishes them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from kafka import TopicPartition
from kafka.errors import KafkaError

from moescope.core.control_records import ControlReader
from moescope.core.errors import DependencyUnreachableError
from moescope.core.kafka import Topic, explain, open_consumer, topic_name
from moescope.core.kafka.broker_watch import BrokerWatch
from moescope.core.kafka.ends import end_offsets
from moescope.core.plain_codec import PlainFormatError
from moescope.processors.group.bounded import end_consumer

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.core.settings import Settings
    from moescope.core.thresholds import ThresholdBook

POLL_MS = 500
RETRY_SECONDS = 1.0
ASK_MS = 2_000


class ControlFollower:
    """Keeps a book at what the control topic says, on a thread of its own.

    Args:
        settings: Name the brokers and the topic.
        book: Filled from the topic; windows are judged by it.
        log: Told when the broker goes and comes, and of records that cannot be used.
        patient: Whether a broker that is not there yet is waited for.
    """

    def __init__(
        self,
        settings: Settings,
        book: ThresholdBook,
        log: Callable[[str], None],
        *,
        patient: bool = True,
    ) -> None:
        self._settings = settings
        self._book = book
        self._log = log
        self._patient = patient
        self._watch = BrokerWatch(log)
        self._place = TopicPartition(topic_name(settings, Topic.CONTROL), 0)
        self._reader = ControlReader()
        self._consumer: Any = None
        self._stopped = threading.Event()
        self._read = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._follow, name="moescope-control", daemon=True)

    def __enter__(self) -> Self:
        """Begin to read."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Read no more."""
        self._stopped.set()
        self._thread.join()
        if self._consumer is not None:
            end_consumer(self._consumer)

    @property
    def failure(self) -> Exception | None:
        """Why thresholds are followed no longer; None while they are."""
        return self._failure

    @property
    def trouble(self) -> str:
        """Why nothing is read at present, and what to do about it; empty: all is well."""
        return self._watch.trouble

    def wait_until_read(self, stop: threading.Event) -> bool:
        """Wait until everything that was published is in the book, or until told to stop.

        Returns:
            Whether it is.

        Raises:
            MoescopeError: The topic cannot be read, and waiting does not help or is not wanted.
        """
        while not stop.is_set() and not self._read.wait(0.05):
            if self._failure is not None:
                raise self._failure
        return self._read.is_set()

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                self._take()
            except DependencyUnreachableError as error:
                if not self._patient and not self._read.is_set():
                    self._failure = error
                    return
                self._watch.lost(error)
                self._stopped.wait(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 (raised by who waits for the first reading)
                self._failure = error
                self._log(f"thresholds are followed no longer: {error}")
                return

    def _take(self) -> None:
        """Take what is new, for half a second at most."""
        try:
            if self._consumer is None:
                self._open()
            records = self._consumer.poll(POLL_MS).get(self._place, [])
            for record in records:
                self._add(record)
            at_end = not self._read.is_set() and self._is_at_end()
        except KafkaError as error:
            raise explain(error, f"reading {self._place.topic}", self._settings) from error
        is_first = at_end and not self._read.is_set()
        if is_first or (records and self._read.is_set()):
            self._watch.found()
            # While a version that is named is still to come, the book stays as it was.
            if self._reader.fill(self._book):
                self._read.set()

    def _open(self) -> None:
        consumer = open_consumer(self._settings)
        consumer.assign([self._place])
        consumer.seek_to_beginning(self._place)
        self._consumer = consumer

    def _is_at_end(self) -> bool:
        end = end_offsets(self._consumer, [self._place], ASK_MS)[self._place]
        position = self._consumer.position(self._place, timeout_ms=ASK_MS)
        return position is not None and bool(position >= end)

    def _add(self, record: Any) -> None:  # noqa: ANN401 (untyped library)
        try:
            self._reader.add(record.key, record.value)
        except PlainFormatError as error:
            self._log(f"record {record.offset} of {self._place.topic} is passed over: {error}")
