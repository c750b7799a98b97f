"""Reading and marking rows of the outbox."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from moescope.jobs.notifications.backoff import is_given_up, next_try_us

if TYPE_CHECKING:
    import duckdb

    from moescope.core.clock import Clock
    from moescope.storage import Store

AUTHOR = "job:notifications"
_AT_ONCE = 100
"""Of each receiver: what is new for one must not wait long for another's old ones."""


class Waiting(NamedTuple):
    """A notification that is not delivered, and not given up."""

    notification: str
    receiver: str
    alert: str
    body: str
    attempts: int
    created_us: int
    not_before_us: int


# Keys of one alert and receiver differ in the event's number only: a longer one is a later one.
_DUE = """
WITH waiting AS (
    SELECT notification, receiver, created_at,
        bool_or(not_before > make_timestamp(?)) OVER (
            PARTITION BY receiver, CASE alert WHEN '' THEN notification ELSE alert END
            ORDER BY created_at, length(notification), notification
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS held
    FROM outbox WHERE delivered_at IS NULL AND given_up_at IS NULL
), due AS (
    SELECT notification, row_number() OVER (
        PARTITION BY receiver ORDER BY created_at, length(notification), notification
    ) AS turn
    FROM waiting WHERE NOT held
)
SELECT notification, receiver, alert, body_json, attempts, epoch_us(created_at),
    epoch_us(not_before)
FROM due JOIN outbox USING (notification)
WHERE turn <= ?
ORDER BY turn, created_at, receiver
"""


def read_waiting(store: Store, now_us: int) -> list[Waiting]:
    """The oldest notifications of each receiver that are due, in the order of telling.

    An alert's later events wait for its earlier ones, so that they are not due before those.
    Receivers take turns.
    """
    with closing(store.cursor()) as cursor:
        rows = cursor.execute(
            _DUE,
            [now_us, _AT_ONCE],
        ).fetchall()
    return [Waiting._make(row) for row in rows]


def record_delivery(store: Store, clock: Clock, notification: str) -> None:
    """Note that a receiver has taken a notification."""
    now_us = clock.now_us()

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
        connection.execute(
            "UPDATE outbox SET attempts = attempts + 1, delivered_at = make_timestamp(?),"
            " last_error = '', commit_id = ? WHERE notification = ?",
            [now_us, commit_id, notification],
        )

    store.change(change, author=AUTHOR, action="deliver", subject=notification, audit=False)


def record_failure(
    store: Store, clock: Clock, waiting: Waiting, error: str, *, only_once: bool = False
) -> bool:
    """Note that a receiver has not taken a notification.

    Args:
        store: Holds the outbox.
        clock: Says when it failed.
        waiting: The notification.
        error: Why.
        only_once: It is not tried again.

    Returns:
        Whether it was given up.
    """
    now_us = clock.now_us()
    given_up = only_once or is_given_up(waiting.created_us, now_us)
    next_us = next_try_us(waiting.attempts + 1, now_us)

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
        connection.execute(
            "UPDATE outbox SET attempts = attempts + 1, not_before = make_timestamp(?),"
            " given_up_at = make_timestamp(?::BIGINT), last_error = ?, commit_id = ?"
            " WHERE notification = ?",
            [next_us, now_us if given_up else None, error, commit_id, waiting.notification],
        )

    subject = waiting.notification
    store.change(change, author=AUTHOR, action="deliver", subject=subject, audit=False)
    return given_up
