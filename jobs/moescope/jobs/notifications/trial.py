"""A test notification: does anybody get it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moescope.core.clock import SystemClock
from moescope.jobs.notifications.body import body_text, trial_body
from moescope.jobs.notifications.errors import DeliveryError
from moescope.jobs.notifications.outbox import Waiting, record_delivery, record_failure
from moescope.storage.control import insert_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from moescope.core.clock import Clock
    from moescope.jobs.notifications.receivers import Receiver
    from moescope.storage import Store


class TrialResult(NamedTuple):
    """What became of a test notification.

    Attributes:
        receiver: Who it went to.
        error: Why it was not taken; empty if it was.
    """

    receiver: str
    error: str


def send_test(
    store: Store,
    receivers: Sequence[Receiver],
    clock: Clock | None = None,
    *,
    author: str = "job:notifications",
    reason: str = "",
) -> tuple[TrialResult, ...]:
    """Send a test notification to every receiver, at once and once only.

    It goes through the outbox like any other, without an alert.

    Args:
        store: Holds the outbox.
        receivers: Who gets it.
        clock: Dates it.
        author: Who asked, for the audit.
        reason: Why, in words.
    """
    clock = clock or SystemClock()
    created_us = clock.now_us()
    waiting = [_waiting(receiver, created_us) for receiver in receivers]

    def write(connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
        insert_rows(connection, "outbox", [_row(each) for each in waiting], commit_id)

    store.change(write, author=author, action="alert test", reason=reason)
    results = []
    for receiver, each in zip(receivers, waiting, strict=True):
        error = ""
        try:
            receiver.send(each.notification, each.body)
        except DeliveryError as failure:
            error = failure.why or failure.what
            record_failure(store, clock, each, error, only_once=True)
        else:
            record_delivery(store, clock, each.notification)
        results.append(TrialResult(receiver.name, error))
    return tuple(results)


def _waiting(receiver: Receiver, created_us: int) -> Waiting:
    key = f"test-{created_us}-{receiver.name}"
    body = body_text(trial_body(key, created_us))
    # Far in the future: the deliverer's thread must not send it as well.
    return Waiting(key, receiver.name, "", body, 0, created_us, created_us + _OUT_OF_REACH_US)


_OUT_OF_REACH_US = 3_600_000_000


def _row(waiting: Waiting) -> dict[str, object]:
    return {
        "notification": waiting.notification,
        "receiver": waiting.receiver,
        "alert": "",
        "body_json": waiting.body,
        "created_at": waiting.created_us,
        "attempts": 0,
        "not_before": waiting.not_before_us,
        "last_error": "",
    }
