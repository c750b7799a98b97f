"""Delivery of the outbox: at least once, in order for each alert, and never in the way."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from moescope.core.errors import MoescopeError
from moescope.jobs.notifications.errors import DeliveryError
from moescope.jobs.notifications.outbox import read_waiting, record_delivery, record_failure
from moescope.storage.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moescope.core.clock import Clock
    from moescope.jobs.notifications.outbox import Waiting
    from moescope.jobs.notifications.receivers import Receiver
    from moescope.storage import Store

_LOGGER = logging.getLogger(__name__)
POLL_S = 1.0
_UNKNOWN_RECEIVER = "the settings name no such receiver any more"


class Delivered(NamedTuple):
    """What one round did."""

    delivered: int
    failed: int
    given_up: int


class Deliverer:
    """Sends what waits in the outbox, and records what became of it.

    A notification is sent first and recorded afterwards: a process that dies in between sends it
    again, with the same idempotency key. Notifications of one alert reach a receiver in order. A
    receiver that fails is left alone for the rest of the round, so that a dead server costs one
    timeout and not one per notification. After a failure it waits 5 s, then twice as long each
    time up to 10 minutes, and gives up a day after the notification was written.

    Args:
        store: Holds the outbox.
        receivers: Who gets them.
        clock: Says what is due.
        poll_s: Seconds between rounds of the thread.
    """

    def __init__(
        self,
        store: Store,
        receivers: Iterable[Receiver],
        clock: Clock,
        *,
        poll_s: float = POLL_S,
    ) -> None:
        self._store = store
        self._receivers = {each.name: each for each in receivers}
        self._clock = clock
        self._poll_s = poll_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def deliver_once(self) -> Delivered:
        """Try everything that is due, once.

        Raises:
            StoreWriteError: What became of a notification could not be recorded.
            FencedError: Another owner took over.
        """
        delivered = failed = given_up = 0
        aside: set[str] = set()
        for waiting in self._due():
            if waiting.receiver in aside or self._stopping.is_set():
                continue
            error = self._sent(waiting)
            if not error:
                record_delivery(self._store, self._clock, waiting.notification)
                delivered += 1
                continue
            aside.add(waiting.receiver)
            failed += 1
            given_up += record_failure(self._store, self._clock, waiting, error)
        return Delivered(delivered, failed, given_up)

    def start(self) -> None:
        """Deliver in a thread until `stop`."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread after the notification that it sends. May be called twice."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.deliver_once()
            except FencedError:
                return
            except MoescopeError as error:
                _LOGGER.warning("Notifications wait: %s", error)
            self._stopping.wait(self._poll_s)

    def _due(self) -> Iterator[Waiting]:
        """What can be sent now; an alert's later events wait for its earlier ones."""
        now_us = self._clock.now_us()
        held: set[tuple[str, str]] = set()
        for waiting in read_waiting(self._store):
            queue = (waiting.alert or waiting.notification, waiting.receiver)
            if waiting.not_before_us > now_us or queue in held:
                held.add(queue)
                continue
            yield waiting

    def _sent(self, waiting: Waiting) -> str:
        """Send one; empty if it was taken, else why not."""
        receiver = self._receivers.get(waiting.receiver)
        if receiver is None:
            return _UNKNOWN_RECEIVER
        try:
            receiver.send(waiting.notification, waiting.body)
        except DeliveryError as error:
            return error.why or error.what
        return ""
