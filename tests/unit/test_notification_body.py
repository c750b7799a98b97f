"""The JSON document of a notification: receivers parse it, so it is an interface."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.red_line_store import VALUES, RedLineStore, arrivals, book_of, rule, version

from moescope.core.tables import TABLE_BY_NAME
from moescope.storage.migrations.m0001_first_tables import create_statement

if TYPE_CHECKING:
    import duckdb

GOLDEN = Path(__file__).parents[1] / "data" / "alert_body.json"


def fired(node: str = "node-1") -> RedLineStore:
    """A store in which an alert of a node fired."""
    store = RedLineStore(book_of(version("t-1", rule(scope="node"))), receivers=("webhook",))
    slots = arrivals("._oO", VALUES | {"O": 7.5}, scope_kind="node", scope_value=node)
    store.play(slots, until=3)
    return store


def test_document_is_the_golden_one() -> None:
    """A field that changes its name or meaning breaks receivers; the format's number says so."""
    (row,) = fired().rows("outbox")
    assert json.loads(row["body_json"]) == json.loads(GOLDEN.read_text("utf-8"))
    assert "\n" not in row["body_json"], "the log needs one line"


@pytest.mark.parametrize("node", ["node-1", "o'brien'; DROP TABLE windows; --"])
def test_queries_run_and_find_their_rows(node: str) -> None:
    """They are pasted at night; names come from producers and may hold anything."""
    store = fired(node)
    body = json.loads(store.rows("outbox")[0]["body_json"])
    store.connection.execute(create_statement(TABLE_BY_NAME["windows"]))
    store.connection.execute(create_statement(TABLE_BY_NAME["paging_rules"]))
    found = {name: store.connection.execute(sql).fetchall() for name, sql in body["sql"].items()}
    assert len(found["statistic"]) == 3, "the minutes before show how it was in health"
    assert [row[3] for row in found["events"]] == ["pending", "firing"]
    assert found["windows"] == found["rule"] == []
    _one_row(store.connection, "windows", body)
    assert len(store.connection.execute(body["sql"]["windows"]).fetchall()) == 1


def _one_row(connection: duckdb.DuckDBPyConnection, table: str, body: dict[str, object]) -> None:
    worst = body["worst"]
    assert isinstance(worst, dict)
    columns = {
        name: body[name]
        for name in (
            "lane", "phase", "window_kind", "size", "stride", "scope_kind", "scope_value",
        )
    } | {name: worst[name] for name in ("layer", "start", "request")}  # fmt: skip
    declared = {column.name: column for column in TABLE_BY_NAME[table].columns}
    filled = {
        name: columns.get(name, _DEFAULTS.get(column.type, []))
        for name, column in declared.items()
        if name in columns or not column.nullable
    }
    marks = ", ".join("?" for _ in filled)
    connection.execute(
        f"INSERT INTO {table} ({', '.join(filled)}) VALUES ({marks})",
        list(filled.values()),
    )


_DEFAULTS: dict[str, object] = {
    "VARCHAR": "", "BIGINT": 0, "UBIGINT": 0, "INTEGER": 0, "DOUBLE": 0.0, "BOOLEAN": True,
    "BLOB": b"", "TIMESTAMP": "2026-01-01",
}  # fmt: skip


def test_summary_is_a_sentence_for_people() -> None:
    """It is what a phone shows."""
    body = json.loads(fired().rows("outbox")[0]["body_json"])
    assert body["summary"].startswith("m r on node node-1: load firing;")
    assert "layer 1" in body["summary"]
    assert "7.5 spreads" in body["summary"]
    assert "paging line 1.0" in body["summary"]


def test_times_keep_their_order() -> None:
    """An alert began before it fired, and was decided by the slot that fired it."""
    store = fired()
    (alert,) = store.alerts()
    body = json.loads(store.rows("outbox")[0]["body_json"])
    assert body["began_at"] < body["fired_at"] == body["decided_at"]
    assert alert["fired_at"] - alert["began_at"] == timedelta(seconds=5)
