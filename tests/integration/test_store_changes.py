"""Changes that people and jobs make: signed, audited, all or nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.exported import exported_rows, stored_rows
from support.shared_rows import (
    BASE,
    LANE,
    SHAPES,
    RowProcessor,
    make_records,
    share_finisher,
)
from support.threshold_versions import activation_row, plain, small_version, store_version

from moescope.core.clock import ManualClock
from moescope.core.errors import InternalError
from moescope.core.thresholds import ThresholdBook, ThresholdScope
from moescope.storage.control import insert_rows, next_number, replace_rows
from moescope.storage.errors import FencedError
from moescope.storage.export import Exporter
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

    from moescope.core.thresholds import ThresholdVersion

CLOCK = ManualClock(BASE)
SCOPE = ThresholdScope.of(LANE)


@pytest.fixture
def book() -> ThresholdBook:
    """A book for the store."""
    return ThresholdBook()


@pytest.fixture
def store(tmp_path: Path, book: ThresholdBook) -> Iterator[Store]:
    """An empty store with a book."""
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES, clock=CLOCK, book=book) as opened:
        yield opened


def rows_of(store: Store, query: str) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    with store.cursor() as cursor:
        return cursor.execute(query).fetchall()


def pause(job: str, *, paused: bool = True) -> dict[str, object]:
    """Row of `job_states`."""
    return {"job": job, "paused": paused, "author": "me", "reason": "why"}


def replace(store: Store, table: str, row: dict[str, object]) -> None:
    """Put a row in place of the one with its key."""
    store.change(
        lambda connection, commit_id: replace_rows(connection, table, [row], commit_id),
        author="me", action="replace",
    )  # fmt: skip


def test_a_change_is_one_audited_transaction(store: Store) -> None:
    """Who changed what, when and why is stored with the change and its commit number."""
    store.apply(RowProcessor().emission(make_records(1, 3)))

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> int:
        insert_rows(connection, "job_states", [pause("export")], commit_id)
        return commit_id

    result = store.change(
        change, author="me", action="job pause", subject="export", reason="upgrade",
        detail={"until": "noon", "path": SHAPES},
    )  # fmt: skip
    assert result == 2
    assert rows_of(store, "SELECT job, paused, commit_id FROM job_states") == [("export", True, 2)]
    (row,) = rows_of(
        store,
        "SELECT number, epoch_us(changed_at), author, action, subject, reason, detail_json,"
        " commit_id FROM audit",
    )
    assert row[:6] == (1, BASE, "me", "job pause", "export", "upgrade")
    assert json.loads(row[6]) == {"until": "noon", "path": str(SHAPES)}
    assert row[7] == 2
    assert rows_of(store, "SELECT last_commit_id FROM owner") == [(2,)]


def test_bookkeeping_needs_no_audit_row(store: Store) -> None:
    """Deliveries and job runs would drown what people did."""
    for _ in range(2):
        store.change(
            lambda connection, commit_id: replace_rows(
                connection, "job_states", [pause("export")], commit_id
            ),
            author="job:x", action="run", audit=False,
        )  # fmt: skip
    assert rows_of(store, "SELECT count(*) FROM audit") == [(0,)]
    assert rows_of(store, "SELECT job, commit_id FROM job_states") == [("export", 2)]


def test_changes_and_emissions_share_one_count(store: Store) -> None:
    """Commit numbers never repeat, so that the export sees every one of them."""
    processor, records = RowProcessor(), make_records(1, 4)
    seen = []
    for record in records:
        store.apply(processor.emission([record]))
        seen.append(store.change(lambda _, commit_id: commit_id, author="me", action="look"))
    assert seen == [2, 4, 6, 8]
    assert rows_of(store, "SELECT commit_id FROM batches ORDER BY 1") == [(1,), (3,), (5,), (7,)]


def test_the_export_sees_a_change(store: Store, tmp_path: Path) -> None:
    """A change without any traffic reaches readers, a replaced row as well."""
    exporter = Exporter(store, tmp_path / "export", CLOCK)
    for paused in (True, False):
        replace(store, "job_states", pause("export", paused=paused))
        assert exporter.export_tail()
        found = exported_rows(tmp_path / "export", "job_states", "job, paused")
        assert found == {("export", paused): 1}


def test_a_replaced_alert_is_replaced_in_the_export(store: Store, tmp_path: Path) -> None:
    """Tables that are exported piece by piece hide the old row."""
    exporter = Exporter(store, tmp_path / "export", CLOCK)
    row: dict[str, object] = {
        "alert": "a", "lane": "l", "phase": "decode", "window_kind": "time", "size": 1,
        "stride": 1, "scope_kind": "all", "scope_value": "", "family": "load", "pattern": "",
        "began_at": BASE, "last_slot": BASE, "worst_value": 1.0, "worst_metric": "gini",
        "worst_layer": 0, "worst_start": 0, "worst_request": "", "version": "t-1",
        "caused_by": "", "historic": False,
    }  # fmt: skip
    for state in ("pending", "firing", "resolved"):
        changed = row | {"state": state, "fired_at": None if state == "pending" else BASE}
        replace(store, "alerts", changed)
        exporter.export_tail()
        found = exported_rows(tmp_path / "export", "alerts", "state")
        assert found == stored_rows(store, "alerts", "state") == {(state,): 1}


def test_an_error_leaves_nothing(store: Store) -> None:
    """Neither rows, nor an audit row, nor a commit number; and the store goes on."""
    processor, records = RowProcessor(), make_records(1, 4)
    store.apply(processor.emission(records[:2]))

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
        insert_rows(connection, "job_states", [pause("export")], commit_id)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        store.change(change, author="me", action="job pause")

    def wrong(connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
        insert_rows(connection, "job_states", [pause("export")], commit_id)
        connection.execute("SELECT nothing FROM nowhere")

    with pytest.raises(InternalError, match="does not fit the tables"):
        store.change(wrong, author="me", action="job pause")
    assert rows_of(store, "SELECT count(*) FROM job_states") == [(0,)]
    assert rows_of(store, "SELECT count(*) FROM audit") == [(0,)]
    assert rows_of(store, "SELECT last_commit_id FROM owner") == [(1,)]
    store.apply(processor.emission(records[2:]))
    assert store.change(lambda _, commit_id: commit_id, author="me", action="look") == 3


def test_a_fenced_owner_changes_nothing(store: Store) -> None:
    """A job of an earlier owner must not write."""
    with store.cursor() as cursor:
        cursor.execute("UPDATE owner SET fencing_token = fencing_token + 1")
    with pytest.raises(FencedError):
        store.change(
            lambda connection, commit_id: insert_rows(
                connection, "job_states", [pause("export")], commit_id
            ),
            author="me", action="job pause",
        )  # fmt: skip
    assert rows_of(store, "SELECT count(*) FROM job_states") == [(0,)]


def test_a_change_may_ask_for_a_cursor(store: Store) -> None:
    """It sees what was committed before, instead of waiting for itself."""

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> list[tuple[Any, ...]]:
        insert_rows(connection, "job_states", [pause("export")], commit_id)
        return rows_of(store, "SELECT count(*) FROM job_states")

    assert store.change(change, author="me", action="look") == [(0,)]


@pytest.mark.parametrize(
    ("row", "words"),
    [({"job": "x", "colour": "red"}, "no column colour"), ({"job": "x"}, "lacks author, paused")],
)
def test_a_row_that_does_not_fit_is_named(store: Store, row: dict[str, Any], words: str) -> None:
    """A forgotten column must not become a silent null."""
    with pytest.raises(InternalError, match=words):
        store.change(
            lambda connection, commit_id: insert_rows(connection, "job_states", [row], commit_id),
            author="me", action="look",
        )  # fmt: skip


def test_numbers_go_on_from_the_greatest(store: Store) -> None:
    """Of versions too, whose numbers are part of their names: `t-10` follows `t-9`."""

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> list[int]:
        found = [next_number(connection, "threshold_versions", "version")]
        for name in ("t-9", "t-10"):
            store_version(connection, small_version(name, LANE), commit_id)
        found.append(next_number(connection, "threshold_versions", "version"))
        return [*found, next_number(connection, "audit", "number")]

    assert store.change(change, author="me", action="x") == [1, 11, 1]
    assert store.change(lambda c, _: next_number(c, "audit", "number"), author="", action="") == 2


def calibrate(store: Store, version: ThresholdVersion) -> None:
    """Store a version."""
    store.change(
        lambda connection, commit_id: store_version(connection, version, commit_id),
        author="me", action="calibrate",
    )  # fmt: skip


def activate(store: Store, number: int, version: str, from_us: int) -> None:
    """Let a version judge from an event time on."""
    store.change(
        lambda connection, commit_id: insert_rows(
            connection, "threshold_activations",
            [activation_row(number, SCOPE, version, from_us)], commit_id,
        ),
        author="me", action="threshold activate",
    )  # fmt: skip


def test_the_book_follows_the_stored_thresholds(store: Store, book: ThresholdBook) -> None:
    """An activation judges at once, from its event time on; a draft judges nothing."""
    first, second = small_version("t-1", LANE), small_version("t-2", LANE, red_high=0.7)
    for version in (first, second):
        calibrate(store, version)
    assert book.at(LANE, BASE) is None
    activate(store, 1, "t-1", BASE)
    activate(store, 2, "t-2", BASE + 10)
    edition = book.edition
    store.change(lambda *_: None, author="me", action="look")
    assert book.edition == edition
    found = [book.at(LANE, BASE + later) for later in (-1, 0, 9, 10)]
    assert [each and each.version for each in found] == [None, "t-1", "t-1", "t-2"]
    assert found[1] is not None
    assert found[3] is not None
    assert plain(found[1]) == plain(first)
    assert plain(found[3]) == plain(second)
    activate(store, 3, "", BASE + 10)
    assert book.at(LANE, BASE + 10) is None
    activate(store, 4, "t-1", BASE + 10)
    again = book.at(LANE, BASE + 10)
    assert again is not None
    assert again.version == "t-1"


def test_a_failed_activation_does_not_reach_the_book(store: Store, book: ThresholdBook) -> None:
    """The book says what is stored, not what was tried."""

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
        store_version(connection, small_version("t-1", LANE), commit_id)
        row = activation_row(1, SCOPE, "t-1", BASE)
        insert_rows(connection, "threshold_activations", [row], commit_id)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError):
        store.change(change, author="me", action="threshold activate")
    assert book.at(LANE, BASE) is None


def test_the_book_is_filled_when_the_file_is_opened(tmp_path: Path) -> None:
    """A restarted owner judges as before."""
    path = tmp_path / "s.duckdb"
    with Store(path, share_finisher, SHAPES) as store:
        calibrate(store, small_version("t-1", LANE))
        activate(store, 1, "t-1", BASE)
    book = ThresholdBook()
    with Store(path, share_finisher, SHAPES, book=book):
        found = book.at(LANE, BASE)
    assert found is not None
    assert plain(found) == plain(small_version("t-1", LANE))
