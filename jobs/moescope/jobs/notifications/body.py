"""What a notification says: one JSON document, the same for every receiver."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from moescope.core.exceedance import SLOT_US
from moescope.core.metrics import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moescope.core.emission import LaneKey
    from moescope.core.thresholds import PagingRule

FORMAT = "moescope.alert/1"
TEST = "test"

_SERIES = (
    "lane", "phase", "window_kind", "size", "stride", "scope_kind", "scope_value", "family",
)  # fmt: skip
_BEFORE_US = 60 * SLOT_US


def notification_key(alert: str, number: int, receiver: str) -> str:
    """The idempotency key of an alert's event for one receiver."""
    return f"{alert}-{number}-{receiver}"


def alert_body(
    notification: str,
    row: Mapping[str, Any],
    event: Mapping[str, Any],
    lane: LaneKey,
    *,
    rule: PagingRule | None,
    same_cause: Sequence[str] = (),
) -> dict[str, Any]:
    """The document of one event of an alert.

    Args:
        notification: Its idempotency key.
        row: The alert's row, times in µs.
        event: The event's row, times in µs.
        lane: What the row's lane stands for.
        rule: The rule that it follows; None if it is gone.
        same_cause: Ids of other alerts that show the fault, and were not sent.
    """
    worst = {
        "metric": row["worst_metric"],
        "layer": row["worst_layer"],
        "value": round(row["worst_value"], 6),
        "line": None if rule is None else round(rule.line, 6),
        "unit": "spreads past the red line",
        "start": row["worst_start"],
        "request": row["worst_request"],
    }
    return {
        "format": FORMAT,
        "notification": notification,
        "kind": "alert",
        "alert": row["alert"],
        "state": event["state"],
        "summary": _summary(row, event, lane, rule),
        "why": event["why"],
        "model": lane.model,
        "revision": lane.revision,
        "domain": lane.domain,
        "origin": lane.origin,
        "fidelity": lane.fidelity,
        "sampling_ratio": lane.sampling_ratio,
        **{name: row[name] for name in _SERIES},
        "pattern": row["pattern"],
        "worst": worst,
        "needed": None if rule is None else rule.needed,
        "of": None if rule is None else rule.of,
        "thresholds": row["version"],
        "began_at": _iso(row["began_at"]),
        "fired_at": _iso(row["fired_at"]),
        "decided_at": _iso(event["slot"]),
        "resolved_at": _iso(row["resolved_at"]),
        "same_cause": list(same_cause),
        "next": "Run the queries with `moescope sql`: the windows behind the worst value, the"
        " statistic slot by slot, and what the alert did.",
        "sql": _queries(row),
    }


def trial_body(notification: str, created_us: int) -> dict[str, Any]:
    """The document of a test notification."""
    return {
        "format": FORMAT,
        "notification": notification,
        "kind": TEST,
        "summary": "moescope: a test notification. No alert fired.",
        "created_at": _iso(created_us),
    }


def body_text(body: Mapping[str, Any]) -> str:
    """The document as it is stored, signed and sent."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def _summary(
    row: Mapping[str, Any], event: Mapping[str, Any], lane: LaneKey, rule: PagingRule | None
) -> str:
    metric = row["worst_metric"]
    title = BY_NAME[metric].title if metric in BY_NAME else metric
    where = f" on {row['scope_kind']} {row['scope_value']}" if row["scope_value"] else ""
    line = "" if rule is None else f" (paging line {rule.line:.1f})"
    return (
        f"{lane.model} {lane.revision}{where}: {row['family']} {event['state']};"
        f" {title} of layer {row['worst_layer']} reached {row['worst_value']:.1f} spreads past"
        f" its red line{line} in {row['phase']} {row['window_kind']} windows"
    )


def _queries(row: Mapping[str, Any]) -> dict[str, str]:
    shape = ("lane", "phase", "window_kind", "size", "stride", "scope_kind", "scope_value")
    windows = {name: row[name] for name in shape} | {
        "start": row["worst_start"],
        "request": row["worst_request"],
        "layer": row["worst_layer"],
    }
    until = max(row["last_slot"], row["began_at"]) + SLOT_US
    rules = {name: row[name] for name in (*shape[1:-1], "family")} | {"version": row["version"]}
    return {  # declared names, and values that are quoted
        "windows": f"SELECT * FROM windows WHERE {_where(windows)}",
        "statistic": f"SELECT slot, value, metric, layer, windows, red_windows FROM exceedances"
        f" WHERE {_where({name: row[name] for name in _SERIES})}"
        f" AND slot BETWEEN {_timestamp(row['began_at'] - _BEFORE_US)} AND {_timestamp(until)}"
        " ORDER BY slot",
        "rule": f"SELECT * FROM paging_rules WHERE {_where(rules)}",
        "events": f"SELECT * FROM alert_events WHERE {_where({'alert': row['alert']})}"
        " ORDER BY number",
    }


def _where(values: Mapping[str, object]) -> str:
    return " AND ".join(
        f"{name} = {value}" if isinstance(value, int) else f"{name} = {_quoted(str(value))}"
        for name, value in values.items()
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _timestamp(time_us: int) -> str:
    return f"TIMESTAMP '{_moment(time_us):%Y-%m-%d %H:%M:%S}'"


def _iso(time_us: int | None) -> str | None:
    return None if time_us is None else _moment(time_us).isoformat().replace("+00:00", "Z")


def _moment(time_us: int) -> datetime:
    seconds, micros = divmod(time_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)
