"""Keeps the control topic level with the thresholds in force."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from moescope.core.control_records import control_changes, control_records
from moescope.core.errors import MoescopeError
from moescope.core.kafka import Topic, explain, open_consumer, open_producer, topic_name
from moescope.core.kafka.ends import end_offsets
from moescope.storage.threshold_rows import read_book

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from moescope.core.clock import Clock
    from moescope.core.self_metrics import SelfMetrics
    from moescope.core.settings import Settings
    from moescope.core.thresholds import ThresholdBook, ThresholdVersion
    from moescope.storage.store import Store

LOOK_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 2.0
LATE_SECONDS: Final = 60.0
"""So far ahead of its event time a version is activated at least."""
_ASK_MS: Final = 2_000
_POLL_MS: Final = 200
_WAITING: Final = "moescope_store_control_waiting_seconds"


class ControlPublisher:
    """Publishes on a thread of its own, so that no commit waits for a broker.

    Args:
        settings: Name the brokers and the topic.
        store: Holds the thresholds.
        book: Its edition tells when they changed.
        metrics: Told how long a change waits.
        clock: For pauses, and to tell how long.
        log: Told when processors judge by old thresholds because a change waits.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        book: ThresholdBook,
        *,
        metrics: SelfMetrics,
        clock: Clock,
        log: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._book = book
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._topic = topic_name(settings, Topic.CONTROL)
        self._versions: Mapping[str, ThresholdVersion] = {}

    def run(self, stop: threading.Event) -> None:
        """Publish what differs now, and after each change, until told to stop."""
        published: int | None = None
        since = self._clock.monotonic()
        has_told = False
        while not stop.is_set():
            edition = self._book.edition
            if edition == published:
                since = self._clock.monotonic()
                stop.wait(LOOK_SECONDS)
                continue
            try:
                self.publish()
            except MoescopeError as error:
                waited = self._clock.monotonic() - since
                self._metrics.set(_WAITING, waited)
                if waited > LATE_SECONDS and not has_told:
                    has_told = True
                    self._log(
                        f"thresholds in force wait for {waited:.0f} s to be published; processors "
                        f"judge by those they know: {error.what} {error.why} {error.next_step}"
                    )
                stop.wait(RETRY_SECONDS)
            else:
                published = edition
                self._metrics.set(_WAITING, 0.0)
                if has_told:
                    has_told = False
                    self._log("thresholds in force are published")

    def publish(self) -> int:
        """Bring the topic level with the store; gives how many records that took.

        Raises:
            MoescopeError: No broker took them.
        """
        from kafka.errors import KafkaError  # noqa: PLC0415 (imported when a client is opened)

        with closing(self._store.cursor()) as cursor:
            self._versions, activations = read_book(cursor, self._versions)
        wanted = control_records(self._versions, activations)
        try:
            changes = control_changes(self._published(), wanted)
            if changes:
                self._send(changes)
        except KafkaError as error:
            raise explain(error, f"publishing to {self._topic}", self._settings) from error
        return len(changes)

    def _published(self) -> dict[bytes, bytes]:
        """Newest value of each key of the topic."""
        from kafka import TopicPartition  # noqa: PLC0415 (imported when a client is opened)

        place = TopicPartition(self._topic, 0)
        found: dict[bytes, bytes] = {}
        with closing(open_consumer(self._settings)) as consumer:
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            end = end_offsets(consumer, [place], _ASK_MS)[place]
            gives_up = self._clock.monotonic() + self._settings["kafka.delivery_timeout"]
            while (consumer.position(place, timeout_ms=_ASK_MS) or 0) < end:
                for record in consumer.poll(_POLL_MS).get(place, []):
                    if record.value is None:
                        found.pop(record.key, None)
                    else:
                        found[record.key] = record.value
                if self._clock.monotonic() >= gives_up:
                    # What was not read is sent again, which changes nothing.
                    break
        return found

    def _send(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        producer: Any = open_producer(self._settings)
        try:
            for key, value in changes:
                # One after the other: no version may follow the activation that names it.
                sent = producer.send(self._topic, key=key, value=value, partition=0)
                sent.get(timeout=self._settings["kafka.delivery_timeout"])
        finally:
            producer.close(timeout=self._settings["kafka.request_timeout"])
