"""Notifications as records of the topic `PREFIX.alerts`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from moescope.core.errors import MoescopeError
from moescope.core.kafka import Topic, explain, open_producer, topic_name
from moescope.core.kafka.ending import end_producer
from moescope.jobs.notifications.errors import DeliveryError

if TYPE_CHECKING:
    from moescope.core.settings import Settings

KEY_HEADER: Final = "idempotency-key"
TIMEOUT_MS: Final = 4_000
"""Of each of: finding a broker, learning about the topic, the acknowledgement."""
_CLOSE_SECONDS: Final = 0.5
"""Twice at most: the whole stays below what a deliverer waits for."""


class KafkaReceiver:
    """Writes each notification to the topic, keyed by its alert.

    A client lives for one notification only: notifications are rare, and a client that is kept
    would spin and hold memory while a broker is frozen.

    Args:
        settings: Name brokers and topic.
    """

    name = "kafka"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topic = topic_name(settings, Topic.ALERTS)

    def send(self, notification: str, body: str) -> None:
        """Write one notification, and wait until it is acknowledged.

        Raises:
            DeliveryError: It was not, or not in time; it may be there all the same.
        """
        from kafka.errors import KafkaError  # noqa: PLC0415 (a quarter of a second)

        try:
            self._write(notification, body)
        except KafkaError as error:
            raise _failed(explain(error, f"sending to {self._topic}", self._settings)) from error
        except MoescopeError as error:
            raise _failed(error) from error

    def _write(self, notification: str, body: str) -> None:
        producer = open_producer(
            self._settings,
            bootstrap_timeout_ms=TIMEOUT_MS,
            max_block_ms=TIMEOUT_MS,
            delivery_timeout_ms=TIMEOUT_MS,
            request_timeout_ms=TIMEOUT_MS,
        )
        try:
            producer.send(
                self._topic,
                key=(json.loads(body).get("alert") or notification).encode(),
                value=body.encode(),
                headers=[(KEY_HEADER, notification.encode())],
            ).get(TIMEOUT_MS / 1_000)
        finally:
            end_producer(producer, _CLOSE_SECONDS)


def _failed(error: MoescopeError) -> DeliveryError:
    return DeliveryError(
        "The alerts topic did not take a notification.",
        why=f"{error.what} {error.why}".strip(),
        next_step=error.next_step,
    )
