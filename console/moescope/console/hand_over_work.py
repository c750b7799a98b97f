"""When processors are let go on from what is stored: once nobody is in their group any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.console.handing_over import ProcessorsActiveError, hand_over, needs_hand_over
from moescope.console.output import counted
from moescope.core.errors import DependencyUnreachableError
from moescope.core.kafka.broker_watch import BrokerWatch

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from moescope.console.opened_store import OpenedStore

RETRY_SECONDS: Final = 1.0


class HandOver:
    """Hands over to processors where that is due, and waits for what is in the way of it.

    Args:
        parts: The open store.
        log: Told once what is waited for.
        is_ordered: Somebody asked for it; else it is due when the store was without processors.
    """

    def __init__(self, parts: OpenedStore, log: Callable[[str], None], *, is_ordered: bool) -> None:
        self._parts = parts
        self._log = log
        self._is_ordered = is_ordered
        self._broker = BrokerWatch(log)
        self._processors = ""

    @property
    def trouble(self) -> str:
        """What is waited for, and what to do about it; empty: nothing."""
        return self._processors or self._broker.trouble

    def perform(self, stop: threading.Event, *, is_patient: bool) -> None:
        """Do it, if it is due.

        Args:
            stop: Ends waiting; it is then not done.
            is_patient: Whether anything is waited for.

        Raises:
            DependencyUnreachableError: Somebody is in the way, and is not waited for.
            MoescopeError: What no waiting mends.
        """
        while not stop.is_set():
            try:
                self._perform()
            except DependencyUnreachableError as error:
                if not is_patient:
                    raise
                self._wait_for(error)
                stop.wait(RETRY_SECONDS)
            else:
                self._processors = ""
                self._broker.found()
                return

    def _perform(self) -> None:
        settings, store = self._parts.settings, self._parts.store
        if self._is_ordered or needs_hand_over(settings, store):
            number = hand_over(settings, store, self._parts.clock)
            self._log(f"processors go on from what is stored of {counted(number, 'partition')}")

    def _wait_for(self, error: DependencyUnreachableError) -> None:
        if not isinstance(error, ProcessorsActiveError):
            self._processors = ""
            self._broker.lost(error)
            return
        self._broker.found()
        if not self._processors:
            self._log(f"waiting: {error.what} {error.next_step} {error.why}")
        self._processors = f"{error.what} {error.next_step}"
