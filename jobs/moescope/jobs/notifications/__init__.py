"""Notifications: what they say, and how they reach people."""

from moescope.jobs.notifications.backoff import GIVE_UP_AFTER_US, next_try_us
from moescope.jobs.notifications.body import alert_body, body_text, notification_key
from moescope.jobs.notifications.deliverer import Delivered, Deliverer
from moescope.jobs.notifications.errors import DeliveryError
from moescope.jobs.notifications.receivers import (
    KafkaReceiver,
    LogReceiver,
    Receiver,
    WebhookReceiver,
    receiver_names,
    receivers_from,
)
from moescope.jobs.notifications.trial import TrialResult, send_test
from moescope.jobs.notifications.webhook import signature

__all__ = [
    "GIVE_UP_AFTER_US",
    "Delivered",
    "Deliverer",
    "DeliveryError",
    "KafkaReceiver",
    "LogReceiver",
    "Receiver",
    "TrialResult",
    "WebhookReceiver",
    "alert_body",
    "body_text",
    "next_try_us",
    "notification_key",
    "receiver_names",
    "receivers_from",
    "send_test",
    "signature",
]
