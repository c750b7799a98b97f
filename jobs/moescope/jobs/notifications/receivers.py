"""Who gets notifications."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Protocol

from moescope.jobs.notifications.kafka_topic import KafkaReceiver
from moescope.jobs.notifications.webhook import WebhookReceiver, read_secret

if TYPE_CHECKING:
    from moescope.core.clock import Clock
    from moescope.core.settings import Settings

__all__ = [
    "KafkaReceiver",
    "LogReceiver",
    "Receiver",
    "WebhookReceiver",
    "receiver_names",
    "receivers_from",
]

LOGGER = logging.getLogger("moescope.alerts")
_LOUD = frozenset({"firing", "no_data"})


class Receiver(Protocol):
    """Takes notifications."""

    @property
    def name(self) -> str:
        """Its name in the outbox."""
        ...

    def send(self, notification: str, body: str) -> None:
        """Hand a notification over.

        Args:
            notification: Idempotency key; the same one may come twice.
            body: JSON document.

        Raises:
            DeliveryError: It was not taken, and can be tried again.
        """
        ...


class LogReceiver:
    """Writes each notification as one line of JSON to the logger `moescope.alerts`."""

    name = "log"

    def send(self, notification: str, body: str) -> None:  # noqa: ARG002 (it is in the body)
        """Log it: as a warning what people have to look at, as information the rest."""
        state = json.loads(body).get("state")
        LOGGER.log(logging.WARNING if state in _LOUD else logging.INFO, "%s", body)


def receiver_names(settings: Settings) -> tuple[str, ...]:
    """Names of the receivers that the settings ask for."""
    webhook = ("webhook",) if settings["alerts.webhook_url"] else ()
    return ("log", *webhook, *(("kafka",) if _has_topic(settings) else ()))


def receivers_from(settings: Settings, clock: Clock) -> tuple[Receiver, ...]:
    """The receivers that the settings ask for.

    Raises:
        SettingsError: The webhook's URL or secret file cannot be used.
    """
    receivers: list[Receiver] = [LogReceiver()]
    url, secret_file = settings["alerts.webhook_url"], settings["alerts.webhook_secret_file"]
    if url:
        secret = read_secret(secret_file) if secret_file else None
        receivers.append(WebhookReceiver(url, secret, clock))
    if _has_topic(settings):
        receivers.append(KafkaReceiver(settings))
    return tuple(receivers)


def _has_topic(settings: Settings) -> bool:
    return bool(settings["kafka.bootstrap_servers"].strip(", ")) and settings["alerts.kafka"]
