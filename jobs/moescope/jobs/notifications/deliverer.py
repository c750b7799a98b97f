"""Delivery of the outbox: at least once, in order for each alert, and never in the way."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from moescope.jobs.notifications.errors import DeliveryError
from moescope.jobs.notifications.outbox import read_waiting, record_delivery, record_failure
from moescope.storage.errors import FencedError, StoreWriteError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moescope.core.clock import Clock
    from moescope.jobs.notifications.outbox import Waiting
    from moescope.jobs.notifications.receivers import Receiver
    from moescope.storage import Store

_LOGGER = logging.getLogger(__name__)
POLL_S = 1.0
STOP_S = 15.0
"""Longer than one exchange may take."""
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
        self._abandoned = threading.Event()
        self._thread: threading.Thread | None = None

    def deliver_once(self) -> Delivered:
        """Try everything that is due, once.

        Raises:
            StoreWriteError: What became of a notification could not be recorded.
            FencedError: Another owner took over.
        """
        delivered = failed = given_up = 0
        aside: set[str] = set()
        for waiting in read_waiting(self._store, self._clock.now_us()):
            if waiting.receiver in aside or self._stopping.is_set():
                continue
            error = self._sent(waiting)
            if self._abandoned.is_set():
                # The store may be closed by now; the next owner sends it again.
                break
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

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """End the thread after the notification that it sends. May be called twice.

        Args:
            timeout_s: Longest wait; a thread that has not ended by then touches the store no more.

        Returns:
            Whether it has ended.
        """
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._abandoned.set()
            _LOGGER.warning("A notification was still on its way after %g s; left.", timeout_s)
            return False
        self._thread = None
        return True

    def _run(self) -> None:
        said = ""
        while not self._stopping.is_set():
            trouble = ""
            try:
                self.deliver_once()
            except FencedError:
                return
            except StoreWriteError as error:
                # The owner tells that once, for all who need its store.
                _LOGGER.debug("Notifications wait for the store: %s", error.what)
            except Exception as error:  # noqa: BLE001 (nobody else would deliver until a restart)
                trouble = " ".join(f"{type(error).__name__}: {error}".split())
            if trouble and trouble != said:
                _LOGGER.warning("Notifications wait: %s", trouble)
            said = trouble
            self._stopping.wait(self._poll_s)

    def _sent(self, waiting: Waiting) -> str:
        """Send one; empty if it was taken, else why not."""
        receiver = self._receivers.get(waiting.receiver)
        if receiver is None:
            return _UNKNOWN_RECEIVER
        try:
            receiver.send(waiting.notification, waiting.body)
        except DeliveryError as error:
            return error.why or error.what
        except Exception as error:  # noqa: BLE001 (its fault must not stop the other receivers)
            return type(error).__name__
        return ""
