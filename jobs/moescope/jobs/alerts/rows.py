"""Rows that a commit's slots add up to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.jobs.notifications.body import alert_body, body_text, notification_key
from moescope.storage.control import insert_rows, replace_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from moescope.core.clock import Clock
    from moescope.jobs.alerts.open_alert import OpenAlert
    from moescope.jobs.alerts.rules import RulesInForce
    from moescope.jobs.paging import Change


class PendingRows:
    """Collects what changed, and writes it at once.

    Args:
        rules: Name the line in notifications.
        clock: Dates the rows of the outbox.
        receivers: Names of those who get notifications.
    """

    def __init__(self, rules: RulesInForce, clock: Clock, receivers: Sequence[str]) -> None:
        self._rules = rules
        self._clock = clock
        self._receivers = receivers
        self._changed: dict[str, OpenAlert] = {}
        self._events: list[dict[str, Any]] = []
        self._sent: list[dict[str, Any]] = []
        self._progress: dict[str, int] = {}

    def changed(self, alert: OpenAlert) -> None:
        """The alert's row is not what is stored."""
        self._changed[alert.alert] = alert

    def event(self, alert: OpenAlert, change: Change) -> dict[str, Any]:
        """Note a change of state and return its row."""
        row = alert.event(change)
        self._events.append(row)
        return row

    def send(self, alert: OpenAlert, event: dict[str, Any], same_cause: Sequence[str] = ()) -> None:
        """Put a notification of an event into the outbox, for each receiver."""
        rule = self._rules.of_version(alert.series, alert.worst.version, event["slot"])
        for receiver in self._receivers:
            key = notification_key(alert.alert, event["number"], receiver)
            body = alert_body(
                key, alert.row(), event, alert.series.lane, rule=rule, same_cause=same_cause
            )
            self._sent.append(outbox_row(key, receiver, alert.alert, body_text(body)))

    def send_standing(
        self, alert: OpenAlert, slot_us: int, why: str, same_cause: Sequence[str] = ()
    ) -> None:
        """Put a notification of where an alert stands into the outbox: news of an old event."""
        event = {
            "number": alert.events,
            "slot": slot_us,
            "state": str(alert.course.state),
            "why": why,
        }
        self.send(alert, event, same_cause)

    def progressed(self, domain: str, judged_before_us: int) -> None:
        """A domain's slots before this are judged."""
        self._progress[domain] = judged_before_us

    def write(self, connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
        """Write everything inside the transaction."""
        for domain, before_us in self._progress.items():
            _write_progress(connection, domain, before_us, commit_id)
        if self._changed:
            rows = [alert.row() for alert in self._changed.values()]
            replace_rows(connection, "alerts", rows, commit_id)
        if self._events:
            insert_rows(connection, "alert_events", self._events, commit_id)
        if self._sent:
            now = self._clock.now_us()
            rows = [{**row, "created_at": now, "not_before": now} for row in self._sent]
            insert_rows(connection, "outbox", rows, commit_id)


def _write_progress(
    connection: duckdb.DuckDBPyConnection, domain: str, before_us: int, commit_id: int
) -> None:
    """Plain statements: this is written every few seconds, and is all that health writes."""
    written = connection.execute(
        "UPDATE red_line_progress SET judged_before_us = ?, commit_id = ? WHERE domain = ?"
        " RETURNING domain",
        [before_us, commit_id, domain],
    ).fetchone()
    if written is None:
        connection.execute(
            "INSERT INTO red_line_progress VALUES (?, ?, ?)", [domain, before_us, commit_id]
        )


def outbox_row(notification: str, receiver: str, alert: str, body: str) -> dict[str, Any]:
    """A row of `outbox` that nobody tried to send yet; without its times."""
    return {
        "notification": notification,
        "receiver": receiver,
        "alert": alert,
        "body_json": body,
        "attempts": 0,
        "delivered_at": None,
        "given_up_at": None,
        "last_error": "",
    }
