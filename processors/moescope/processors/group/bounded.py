"""Calls of the Kafka client that may wait for ever, with an end."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSE_SECONDS = 2.0


def within(seconds: float, work: Callable[[], None]) -> None:
    """Do something that may never return.

    Raises:
        TimeoutError: It did not end in time, and goes on by itself on a thread that ends with
            the process.
        BaseException: What it raised.
    """
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (raised again by the caller)
            failure.append(error)

    thread = threading.Thread(target=run, name="moescope-kafka", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"No end after {seconds:g} s.")
    if failure:
        raise failure[0]


def end_consumer(consumer: Any) -> None:  # noqa: ANN401 (untyped library)
    """Leave the group, if a broker answers soon, and end a client."""
    with suppress(KafkaError, TimeoutError):
        within(
            CLOSE_SECONDS, lambda: consumer.close(autocommit=False, timeout_ms=CLOSE_SECONDS * 1e3)
        )
