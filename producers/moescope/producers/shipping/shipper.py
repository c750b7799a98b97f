"""Ships the batch log to the topic of routing batches, whatever becomes of the broker."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from queue import Empty, Queue
from typing import TYPE_CHECKING, Final, Self

from moescope.core.batchlog import BatchLogError
from moescope.core.clock import NO_TIME, Clock, SystemClock
from moescope.core.errors import InputError, SettingsError
from moescope.core.kafka import (
    BrokerRefusedError,
    BrokerUnreachableError,
    KafkaRecordTooLargeError,
    Topic,
    explain,
    topic_name,
)
from moescope.core.kafka.record_times import times_header
from moescope.producers.shipping.client import (
    Delivered,
    Event,
    KafkaClients,
    NotOpened,
    Opened,
    Undelivered,
)
from moescope.producers.shipping.feeds import NodeFeeds
from moescope.producers.shipping.pace import ShippingPace
from moescope.producers.shipping.sharing import share_of
from moescope.producers.shipping.standing import Standing, reason_of
from moescope.producers.shipping.totals import ShippingReport, ShippingTotals
from moescope.producers.shipping.undeliverable import set_aside
from moescope.producers.shipping.waiting import BackOff, Patience, shortened

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from moescope.core.batchlog import LogRecord
    from moescope.core.errors import MoescopeError
    from moescope.core.self_metrics import SelfMetrics
    from moescope.core.settings import Settings
    from moescope.producers.shipping.feed import NodeFeed

_OVERDUE_SECONDS: Final = 5.0
"""So long after its delivery time-out a record counts as failed, whatever the library says."""

_log = logging.getLogger("moescope.producers")


class Shipper:
    """Sends every record of the live partitions under a log root, and moves their cursors.

    A record is sent again until a broker has acknowledged it; what is sent twice, readers drop by
    (node, incarnation, sequence). One object belongs to one thread at a time; `trouble`, `totals`
    and `stepped_at` may be looked at from any, and `save_cursor` be called.

    Args:
        settings: Brokers, topic prefix, time-outs and `kafka.in_flight_bytes`.
        root: Log root; need not exist yet.
        metrics: Of the process.
        clock: Time.
        chance: Gives numbers from 0 up to 1, for pauses.
        pace: How often what is done.

    Attributes:
        stepped_at: Monotonic time of the loop's last round: one that is old says that it hangs.

    Raises:
        SettingsError: No brokers are configured.
    """

    def __init__(
        self,
        settings: Settings,
        root: Path,
        metrics: SelfMetrics,
        *,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        pace: ShippingPace | None = None,
    ) -> None:
        if not settings["kafka.bootstrap_servers"].strip(", "):
            raise SettingsError(
                "No Kafka brokers are configured.",
                why="kafka.bootstrap_servers is empty.",
                next_step="Name the settings file that sets it with --config, or set "
                "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS=kafka:9092; without Kafka, `moescope run all` "
                "does everything on one machine.",
            )
        self._settings = settings
        self._root = root
        self._clock = clock or SystemClock()
        self._chance = chance
        self._pace = pace or ShippingPace()
        # No SimpleQueue: its `get` waits for ever when a signal is handled as its time ends.
        self._events: Queue[Event] = Queue()
        self._clients = KafkaClients(settings, topic_name(settings, Topic.ROUTING), self._events)
        self._report = ShippingReport(metrics, self._clock)
        self._feeds = NodeFeeds(root, self._report, self._new_back_off)
        self._standing = Standing()
        self._back_off = self._new_back_off()
        self._patience = Patience(
            self._pace.silence,
            min(settings["kafka.request_timeout"], settings["kafka.delivery_timeout"]),
        )
        self._generation = 0
        self._client: Opened | None = None
        self._is_opening = False
        now = self._clock.monotonic()
        self._open_at = self._heard_at = now
        self._discover_at = self._save_at = self._report_at = now
        self.stepped_at = now

    @property
    def trouble(self) -> MoescopeError | None:
        """Why nothing can be shipped at the moment, if so."""
        return self._standing.trouble

    @property
    def totals(self) -> ShippingTotals:
        """What was shipped and what failed."""
        return self._report.totals

    @property
    def is_connected(self) -> bool:
        """Whether a broker has accepted us, and has the topic, as far as is known."""
        return self._client is not None

    def run(self, stop: threading.Event) -> None:
        """Ship until told to stop.

        Raises:
            InputError: A setting or a file that a client needs is wrong: trying again is no use.
        """
        while not stop.is_set():
            self._step()

    def drain(
        self,
        stop: threading.Event | None = None,
        seconds: float | None = None,
        patience: float | None = None,
    ) -> int:
        """Ship everything that the log holds when this is called.

        Args:
            stop: Ends it early.
            seconds: As well; None for as long as it takes.
            patience: Ends it, too, when nothing was shipped for so many seconds; a broker is then
                looked for even where there is nothing to ship.

        Returns:
            How many records are left.

        Raises:
            InputError: As `run`.
        """
        self._feeds.discover()
        ends = self._feeds.ends()
        begin = moved = self._clock.monotonic()
        fewest = left = self._feeds.left(ends)
        was_connected = self.is_connected
        while left or (patience is not None and not self.is_connected):
            now = self._clock.monotonic()
            if stop is not None and stop.is_set():
                break
            if seconds is not None and now - begin >= seconds:
                break
            if left < fewest or (self.is_connected and not was_connected):
                fewest, moved, was_connected = left, now, self.is_connected
            # An attempt to connect is seen through: it says what is wrong.
            if patience is not None and now - moved >= patience and not self._is_opening:
                break
            self._step()
            left = self._feeds.left(ends)
        self._save_and_report()
        return left

    def save_cursor(self, node: str) -> None:
        """Move a node's cursor to what has arrived, as far as its disk lets it.

        Who removes batches by the byte cap calls this first, so that none that has arrived counts
        as dropped.
        """
        feed = self._feeds.get(node)
        if feed is not None:
            # Saving is tried again soon, and complains then.
            with suppress(BatchLogError):
                feed.save_settled()

    def close(self) -> None:
        """Save the cursors and let go of everything; what is on its way counts as not sent."""
        if self._client is not None:
            self._clients.retire(self._client.producer)
            self._client = None
        self._clients.close()
        self._take_events(0.0)
        self._save_and_report()
        self._feeds.close()

    def __enter__(self) -> Self:
        """The shipper itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _step(self) -> None:
        now = self.stepped_at = self._clock.monotonic()
        if now >= self._discover_at:
            self._discover_at = now + self._pace.discover
            self._feeds.discover()
        if self._client is None and not self._is_opening and now >= self._open_at:
            self._generation += 1
            self._is_opening = True
            self._clients.open(self._generation)
        has_sent = self._client is not None and self._send_from_all(self._client)
        self._take_events(0.0 if has_sent else self._pace.poll)
        now = self._clock.monotonic()
        self._watch(now)
        if now >= self._save_at:
            self._save_at = now + self._pace.save
            self._feeds.save_all()
        if now >= self._report_at:
            self._report_at = now + self._pace.report
            self._report.look_at(self._feeds)

    def _send_from_all(self, client: Opened) -> bool:
        has_sent = False
        for feed in self._feeds.in_turn():
            if self._clock.monotonic() < feed.held_until:
                continue
            try:
                has_sent |= self._send_from(feed, client)
            except BatchLogError as error:
                self._hold(feed, error)
        return has_sent

    def _send_from(self, feed: NodeFeed, client: Opened) -> bool:
        record = feed.peek()
        if record is None:
            return False
        now = self._clock.monotonic()
        share = share_of(
            feed.load(now),
            [other.load(now) for other in self._feeds if other is not feed],
            cap=self._settings["kafka.in_flight_bytes"],
            sharers=sum(other.has_work for other in self._feeds),
        )
        left, most = share.bytes, share.first_bytes
        has_sent = False
        while (
            record is not None
            and len(record.payload) <= most
            and len(feed.window) < feed.queue_limit.records
        ):
            if not self._are_any_on_their_way():
                self._heard_at = now
            feed.sent(now)
            self._clients.send(
                client, feed.node, record.offset, record.payload, self._headers(record)
            )
            has_sent = True
            left = most = max(0, left - len(record.payload))
            record = feed.peek()
        return has_sent

    def _headers(self, record: LogRecord) -> list[tuple[str, bytes]]:
        if record.append_time_us == NO_TIME:
            return []
        return [times_header(record.append_time_us, self._clock.now_us())]

    def _are_any_on_their_way(self) -> bool:
        return any(len(feed.window) for feed in self._feeds)

    def _take_events(self, seconds: float) -> None:
        """Take everything that has happened, after waiting for the first of it."""
        try:
            event = self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
            while True:
                self._take(event)
                event = self._events.get_nowait()
        except Empty:
            return

    def _take(self, event: Event) -> None:
        now = self._clock.monotonic()
        match event:
            case Delivered():
                self._take_delivered(event, now)
            case Undelivered():
                if self._is_current(event.generation):
                    self._take_undelivered(event, now)
            case Opened():
                self._is_opening = False
                self._client = event
                self._heard_at = now
                self._standing.opened(now)
            case NotOpened():
                self._is_opening = False
                if isinstance(event.error, InputError) and not isinstance(
                    event.error, BrokerRefusedError
                ):
                    raise event.error
                self._standing.not_opened(event.error, now)
                self._begin_again(event.error, now)

    def _is_current(self, generation: int) -> bool:
        return self._client is not None and self._client.generation == generation

    def _take_delivered(self, event: Delivered, now: float) -> None:
        feed = self._feeds.get(event.node)
        if feed is None:
            return
        sent, is_news = feed.settle(event.offset)
        if is_news:
            self._report.shipped(event.node, event.size)
        if not self._is_current(event.generation):
            return
        self._heard_at = now
        if sent is not None:
            self._patience.answered(now - sent.at)
            feed.queue_limit.answered(now - sent.at)
        self._back_off.reset()
        feed.back_off.reset()
        self._standing.delivered(now)
        self._feeds.is_well(event.node)

    def _take_undelivered(self, event: Undelivered, now: float) -> None:
        feed = self._feeds.get(event.node)
        if feed is None:
            return
        error = explain(event.error, f"sending a batch of node {event.node}", self._settings)
        if isinstance(error, KafkaRecordTooLargeError):
            self._set_aside(feed, event.offset, error)
        elif isinstance(error, BrokerUnreachableError) and self._others_are_heard(feed, now):
            self._report.failed(reason_of(error))
            self._hold(feed, error)
            self._give_client_up()
            self._open_at = now
        else:
            self._deliver_nothing(error, now)

    def _others_are_heard(self, feed: NodeFeed, now: float) -> bool:
        """Whether a broker has answered since this node's oldest record was sent."""
        return self._heard_at > now - feed.load(now).waits

    def _set_aside(self, feed: NodeFeed, offset: int, error: KafkaRecordTooLargeError) -> None:
        # The library fails whatever else is on its way with the same error: only the first one
        # of a client is this record's own.
        self._give_client_up()
        try:
            record = feed.record_at(offset)
            if record is None:  # the byte cap was faster, and has counted it
                return
            path = set_aside(
                self._root, feed.node, record, why=error.why, now_us=self._clock.now_us()
            )
        except (BatchLogError, OSError) as failure:
            # It stays unsettled: the node waits, and the batch is tried again.
            self._hold(feed, failure)
            return
        _, is_news = feed.settle(offset)
        if is_news:
            self._report.set_aside(feed.node)
            _log.error(
                "Batch %d of node %s (%d bytes) is over the broker's limit, kept in %s: %s",
                *(offset, feed.node, len(record.payload), path, error),
            )

    def _watch(self, now: float) -> None:
        """Give a client up that has fallen silent."""
        if self._client is None or not self._are_any_on_their_way():
            return
        silent = now - self._heard_at
        overdue = self._settings["kafka.delivery_timeout"] + _OVERDUE_SECONDS
        waits = max(feed.load(now).waits for feed in self._feeds)
        if silent <= self._patience.seconds and waits <= overdue:
            return
        self._patience.exceeded()
        self._deliver_nothing(
            BrokerUnreachableError(
                "The Kafka broker does not answer.",
                why=f"Batches are on their way, and nothing came back for {silent:.1f} s.",
                next_step="Check the brokers at "
                f"{self._settings['kafka.bootstrap_servers']}, and the line to them.",
            ),
            now,
        )

    def _deliver_nothing(self, error: MoescopeError, now: float) -> None:
        self._standing.not_delivered(error, now)
        self._give_client_up()
        self._begin_again(error, now)

    def _begin_again(self, error: MoescopeError, now: float) -> None:
        """Try another client, after a pause."""
        self._report.failed(reason_of(error))
        if isinstance(error, BrokerRefusedError):
            self._open_at = now + shortened(self._pace.refused_pause, self._chance)
        else:
            self._open_at = now + self._back_off.pause()

    def _give_client_up(self) -> None:
        if self._client is None:
            return
        self._clients.retire(self._client.producer)
        self._client = None
        self._report.gave_client_up()
        for feed in self._feeds:
            feed.rewind()

    def _hold(self, feed: NodeFeed, error: Exception) -> None:
        feed.held_until = self._clock.monotonic() + feed.back_off.pause()
        self._feeds.complain(feed.node, error)

    def _save_and_report(self) -> None:
        self._feeds.save_all()
        self._report.look_at(self._feeds)

    def _new_back_off(self) -> BackOff:
        return BackOff(self._pace.first_pause, self._pace.longest_pause, self._chance)
