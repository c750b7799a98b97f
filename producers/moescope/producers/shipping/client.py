"""Kafka clients that are opened and closed aside: whoever ships never waits for either."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moescope.core.errors import MoescopeError
from moescope.core.kafka import TopicMissingError, explain, open_admin, open_producer
from moescope.core.kafka.ending import end_producer

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import Queue

    from moescope.core.settings import Settings

METADATA_SECONDS: Final = 1.0
"""The longest that asking for the topic's partitions, or a `send`, may block."""
BATCH_BYTES: Final = 16 << 10
"""Small records that wait together travel together, up to so many bytes. Far below any broker's
limit: it refuses all of what travels together, and a large record has to travel alone."""
CLOSE_SECONDS: Final = 2.0


class Opened(NamedTuple):
    """A client is ready: the broker knows us, and the topic exists."""

    generation: int
    producer: Any


class NotOpened(NamedTuple):
    """A client could not be had."""

    generation: int
    error: MoescopeError


class Delivered(NamedTuple):
    """A broker has acknowledged a record of `size` payload bytes."""

    generation: int
    node: str
    offset: int
    size: int


class Undelivered(NamedTuple):
    """A record was not delivered; `error` is the library's."""

    generation: int
    node: str
    offset: int
    error: BaseException


Event = Opened | NotOpened | Delivered | Undelivered


class KafkaClients:
    """Makes one client after the other, each with a number, and tells what became of it.

    Args:
        settings: Of the brokers.
        topic: Where everything is sent.
        events: Gets what happens, from threads of this object and of the library.
    """

    def __init__(self, settings: Settings, topic: str, events: Queue[Event]) -> None:
        self.topic = topic
        self._settings = settings
        self._events = events
        self._lock = threading.Lock()
        self._is_closed = False
        self._retiring: list[threading.Thread] = []

    def open(self, generation: int) -> None:
        """Begin to open a client; `Opened` or `NotOpened` follows."""
        self._aside(self._open, generation, name="moescope-kafka-open")

    def send(
        self,
        client: Opened,
        node: str,
        offset: int,
        payload: bytes,
        headers: list[tuple[str, bytes]],
    ) -> None:
        """Send a record; `Delivered` or `Undelivered` follows."""
        import kafka.errors  # noqa: PLC0415 (loaded with the client)

        number, size = client.generation, len(payload)
        events = self._events
        try:
            future = client.producer.send(
                self.topic, value=payload, key=node.encode(), headers=headers
            )
        except (kafka.errors.KafkaError, ValueError) as error:
            events.put(Undelivered(number, node, offset, error))
            return
        future.add_callback(lambda _: events.put(Delivered(number, node, offset, size)))
        future.add_errback(lambda error: events.put(Undelivered(number, node, offset, error)))

    def retire(self, producer: Any) -> None:  # noqa: ANN401 (the library is untyped)
        """Give a client up at once: what it has not delivered it will not deliver later."""
        self._retiring = [thread for thread in self._retiring if thread.is_alive()]
        self._retiring.append(self._aside(end_producer, producer, name="moescope-kafka-close"))

    def close(self) -> None:
        """No further client; waits a moment for those that are being closed."""
        with self._lock:
            self._is_closed = True
        for thread in self._retiring:
            thread.join(CLOSE_SECONDS)

    def _aside(
        self, target: Callable[..., None], *arguments: object, name: str
    ) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    def _open(self, generation: int) -> None:
        event = self._attempt(generation)
        if isinstance(event, NotOpened):
            # Connections that failed lie about in cycles, with their sockets: in a process that
            # does nothing but wait for a broker, they would gather.
            gc.collect()
        with self._lock:
            if isinstance(event, NotOpened) or not self._is_closed:
                self._events.put(event)
                return
        end_producer(event.producer)

    def _attempt(self, generation: int) -> Opened | NotOpened:
        producer = None
        try:
            producer = open_producer(
                self._settings,
                max_block_ms=round(METADATA_SECONDS * 1e3),
                batch_size=BATCH_BYTES,
                metrics_enabled=False,
            )
            self._find_topic(producer)
        except Exception as error:  # noqa: BLE001 (an attempt must end in an event)
            if producer is not None:
                end_producer(producer)
            return NotOpened(generation, self._told(error))
        return Opened(generation, producer)

    def _told(self, error: Exception) -> MoescopeError:
        """The error without its causes, which hold half-made clients and their sockets."""
        known = (
            error
            if isinstance(error, MoescopeError)
            else explain(error, "connecting", self._settings)
        )
        known.__cause__ = known.__context__ = None
        return known.with_traceback(None)

    def _find_topic(self, producer: Any) -> None:  # noqa: ANN401 - untyped library
        import kafka.errors  # noqa: PLC0415 - loaded with the client

        doing = f"looking for {self.topic}"
        try:
            producer.partitions_for(self.topic)
        except kafka.errors.KafkaTimeoutError:
            self._raise_if_missing()
        except kafka.errors.KafkaError as error:
            raise explain(error, doing, self._settings) from error
        else:
            return
        try:
            producer.partitions_for(self.topic)
        except kafka.errors.KafkaError as error:
            raise explain(error, doing, self._settings) from error

    def _raise_if_missing(self) -> None:
        """The client only knows that it heard of no topic in time: ask for the list."""
        import kafka.errors  # noqa: PLC0415 - loaded with the client

        admin = open_admin(self._settings)
        try:
            topics = admin.list_topics()
        except kafka.errors.KafkaError as error:
            raise explain(error, "listing the topics", self._settings) from error
        finally:
            with suppress(kafka.errors.KafkaError):
                admin.close()
        if self.topic not in topics:
            raise TopicMissingError(
                f"The topic {self.topic} does not exist, or may not be seen.",
                why=f"The broker lists {len(topics)} topics, and not this one.",
                next_step="Make the topics: `moescope kafka topics-apply --yes`.",
            )
