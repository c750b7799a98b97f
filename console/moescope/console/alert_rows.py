"""Rows behind `moescope alert list | show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moescope.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.console.reading import Reader

_ALERTS: Final = (
    "SELECT a.* EXCLUDE (commit_id), l.model, l.revision, l.origin, l.domain"
    " FROM alerts a JOIN lanes l USING (lane)"
)


def alert_rows(reader: Reader, *, only_open: bool) -> list[dict[str, Any]]:
    """Alerts that fired, newest first, those that were sent with another one included."""
    over = "AND a.resolved_at IS NULL" if only_open else ""
    return reader.rows(f"{_ALERTS} WHERE a.fired_at IS NOT NULL {over} ORDER BY a.fired_at DESC")


def own_pages(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without alerts that were sent with another one of the rows."""
    listed = {row["alert"] for row in rows}
    return [row for row in rows if row["caused_by"] not in listed]


def page_words(row: dict[str, Any]) -> str:
    """Whether an alert that fired was a page of its own."""
    if row["caused_by"]:
        return f"with {row['caused_by']}"
    return "not sent: history" if row["historic"] else "its own"


def alert_document(reader: Reader, start_of_id: str) -> dict[str, Any]:
    """An alert with its events and notifications, and the query for its worst window.

    Raises:
        InputError: No alert, or several, have such an id.
    """
    found = reader.rows(f"{_ALERTS} WHERE starts_with(a.alert, ?)", [start_of_id])
    if len(found) != 1:
        raise InputError(
            f"{'Several alerts' if found else 'No alert'} with an id that begins {start_of_id!r}.",
            next_step="`moescope alert list` shows the ids.",
        )
    (alert,) = found
    key = [alert["alert"]]
    return {
        "alert": alert,
        "events": reader.rows(
            "SELECT number, slot, state, why FROM alert_events WHERE alert = ? ORDER BY number", key
        ),
        "notifications": reader.rows(
            "SELECT notification, receiver, created_at, attempts, delivered_at, given_up_at,"
            " last_error FROM outbox WHERE alert = ? ORDER BY created_at, receiver",
            key,
        ),
        "window_sql": _window_sql(alert),
    }


def _window_sql(alert: dict[str, Any]) -> str:
    """Query for the worst window; names are quoted as SQL text."""
    same = {
        name: alert[name]
        for name in ("phase", "window_kind", "size", "stride", "scope_kind", "scope_value")
    }
    same |= {
        "lane": alert["lane"],
        "start": alert["worst_start"],
        "request": alert["worst_request"],
        "layer": alert["worst_layer"],
    }
    conditions = " AND ".join(
        f"{name} = '{value.replace(chr(39), chr(39) * 2)}'"
        if isinstance(value, str)
        else f"{name} = {value}"
        for name, value in same.items()
    )
    return f"SELECT * FROM windows WHERE {conditions}"  # noqa: S608 (for a person to run)
