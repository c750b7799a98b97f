"""Old rows go, young ones stay, and readers of the export see the same."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.exported import exported_rows, stored_rows
from support.sample_store import MIDNIGHT, MIDNIGHT_US, SampleStore
from support.shared_rows import SHAPES, RowProcessor, make_records, share_finisher

from moescope.core.clock import NO_TIME, ManualClock
from moescope.core.tables import TABLE_BY_NAME, TABLES
from moescope.storage.export import Exporter
from moescope.storage.export.layout import exported_tables
from moescope.storage.places import export_folder, store_file
from moescope.storage.retention import remove_old
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DAY = timedelta(days=1)
DAY_US = 86_400_000_000
NOW_US = MIDNIGHT_US + 100 * DAY_US
NOW = MIDNIGHT + 100 * DAY


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Callable[[Callable[[SampleStore], None]], Store]]:
    """Writes rows with plain SQL, then opens the store over them."""
    opened: list[Store] = []

    def fill(write: Callable[[SampleStore], None]) -> Store:
        sample = SampleStore.create(tmp_path)
        for lane, domain in (("l", "live"), ("i", "import")):
            sample.add("lanes", lane=lane, domain=domain)
            sample.add("offsets", partition=f"p{lane}", domain=domain, sealed=True)
        write(sample)
        sample.connection.close()
        opened.append(Store(store_file(tmp_path), share_finisher, SHAPES))
        return opened[-1]

    yield fill
    for store in opened:
        store.close()


def rows_of(store: Store, query: str) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    with store.cursor() as cursor:
        return cursor.execute(query).fetchall()


def remove(
    store: Store, *, now_us: int = NOW_US, red_days: int = 50, batch_rows: int = 1000
) -> dict[str, int]:
    """10 days, red ones 50."""
    return remove_old(
        store, now_us=now_us, windows_days=10, red_days=red_days, batch_rows=batch_rows
    )


def window(sample: SampleStore, start: int, age: float, **values: object) -> None:
    """A window that closed some days ago."""
    close = {"close_time": NOW - age * DAY, "lane": "l"}
    sample.add_window(start, 1, **close | values)


def test_red_windows_live_longer_and_imports_stay(
    filled: Callable[[Callable[[SampleStore], None]], Store],
) -> None:
    """What is younger than its lifetime, has no time, or was imported is not touched."""

    def write(sample: SampleStore) -> None:
        window(sample, 1, 9.9)
        window(sample, 2, 10.1)
        window(sample, 3, 10.1, level="red")
        window(sample, 4, 49.9, level="red")
        window(sample, 5, 50.1, level="red")
        window(sample, 6, 99, domain="import", lane="i")
        sample.add_window(7, 1, close_time=None)
        window(sample, 8, -3)

    store = filled(write)
    assert remove(store) == {"windows": 2}
    kept = [start for (start,) in rows_of(store, "SELECT start FROM windows ORDER BY start")]
    assert kept == [1, 3, 4, 6, 7, 8]
    assert rows_of(store, "SELECT author, action FROM audit") == [("job:retention", "retention")]
    assert remove(store) == {}
    assert rows_of(store, "SELECT count(*) FROM audit") == [(1,)]


def test_nothing_goes_without_a_watermark(
    filled: Callable[[Callable[[SampleStore], None]], Store],
) -> None:
    """An owner that has seen nothing does not know how old anything is."""
    store = filled(lambda sample: window(sample, 1, 99))
    assert remove(store, now_us=NO_TIME) == {}
    assert remove(store, red_days=1) == {"windows": 1}


DATED: tuple[tuple[str, dict[str, object], int], ...] = (
    ("metric_histograms", {"lane": "l"}, 10),
    ("metric_histograms", {"lane": "i"}, 0),
    ("exceedances", {"lane": "l"}, 10),
    ("exceedances", {"lane": "i"}, 0),
    ("token_window_keys", {}, 10),
    ("batches", {"partition": "pl"}, 10),
    ("batches", {"partition": "pi"}, 0),
    ("dead_letters", {"partition": "pl"}, 10),
    ("dead_letters", {"partition": "pi"}, 0),
    ("alerts", {"lane": "l", "resolved_at": MIDNIGHT}, 50),
    ("alerts", {"lane": "l", "resolved_at": None}, 0),
    ("alerts", {"lane": "l", "resolved_at": NOW}, 0),
    ("alert_events", {"alert": "gone"}, 50),
    ("patterns", {"lane": "l", "ended_at": MIDNIGHT}, 50),
    ("patterns", {"lane": "l", "ended_at": NOW}, 0),
    ("outbox", {"delivered_at": MIDNIGHT}, 50),
    ("outbox", {"given_up_at": MIDNIGHT}, 50),
    ("outbox", {}, 0),
    ("job_runs", {"state": "done"}, 50),
    ("job_runs", {"state": "running"}, 0),
)
TIMES = {"outbox": "created_at", "job_runs": "scheduled_for"}


def test_each_table_has_its_lifetime(
    filled: Callable[[Callable[[SampleStore], None]], Store],
) -> None:
    """Rows go at the first whole hour past it; what is open, imported or unsent stays (0)."""
    removed: Counter[str] = Counter()
    left: dict[str, list[datetime]] = {}

    def write(sample: SampleStore) -> None:
        for table, values, days in DATED:
            for age in (days - 0.01, days + 0.05, 99.0):
                moment = NOW - age * DAY
                key = {"key_hash": round(age * 100)} if table == "token_window_keys" else {}
                sample.add(table, **{time_of(table): moment} | values | key)
                if days and age > days:
                    removed[table] += 1
                else:
                    left.setdefault(table, []).append(moment)

    store = filled(write)
    assert remove(store) == removed
    for table, moments in left.items():
        found = rows_of(store, f"SELECT {time_of(table)} FROM {table} ORDER BY 1")
        assert [moment for (moment,) in found] == sorted(moments), table


def time_of(table: str) -> str:
    """The column that dates its rows."""
    return TIMES.get(table) or str(TABLE_BY_NAME[table].time_column)


def test_every_table_with_a_limited_lifetime_has_a_rule() -> None:
    """What the reference says of a table is what happens to it."""
    limited = {table.name for table in TABLES if "retention." in table.retention}
    tested = {table for table, _, _ in DATED}
    assert limited == tested | {"windows", "reference_distributions", "placements"}


def test_placements_stay_while_they_may_hold(
    filled: Callable[[Callable[[SampleStore], None]], Store],
) -> None:
    """One goes once another has held for as long as red windows are kept; an import's stays."""
    ages = (120, 90, 55, 20)

    def write(sample: SampleStore) -> None:
        for domain in ("live", "import-1"):
            for age in ages:
                sample.add("placements", domain=domain, effective_from=NOW - age * DAY)

    store = filled(write)
    assert remove(store) == {"placements": 2}
    found = rows_of(store, "SELECT domain, effective_from FROM placements")
    assert {(domain, round((NOW - moment) / DAY)) for domain, moment in found} == {
        ("live", 55), ("live", 20), *(("import-1", age) for age in ages),
    }  # fmt: skip


def test_keys_stay_while_an_import_runs(
    filled: Callable[[Callable[[SampleStore], None]], Store],
) -> None:
    """Its event times may be old, and a request of it may come back."""

    def write(sample: SampleStore) -> None:
        sample.add("token_window_keys", key_hash=1, close_time=MIDNIGHT)
        sample.add("offsets", partition="running", domain="another", sealed=False)

    assert remove(filled(write)) == {}


def test_alerts_take_their_events_with_them(
    filled: Callable[[Callable[[SampleStore], None]], Store],
) -> None:
    """An open alert keeps all of its events, however old."""

    def write(sample: SampleStore) -> None:
        for alert, resolved in (("over", MIDNIGHT), ("open", None)):
            sample.add("alerts", alert=alert, lane="l", began_at=MIDNIGHT, resolved_at=resolved)
            sample.add("alert_events", alert=alert, slot=MIDNIGHT)

    store = filled(write)
    assert remove(store) == {"alerts": 1, "alert_events": 1}
    assert rows_of(store, "SELECT alert FROM alert_events") == [("open",)]


def test_references_stay_that_something_needs(
    filled: Callable[[Callable[[SampleStore], None]], Store],
) -> None:
    """The newest ones, of which the next are made, and those of windows that are kept."""

    def write(sample: SampleStore) -> None:
        for number in range(30):
            sample.add(
                "reference_distributions", reference_id=f"r{number}", lane="l",
                effective_from=MIDNIGHT + timedelta(minutes=5 * number),
            )  # fmt: skip
        close = MIDNIGHT + timedelta(days=60)
        sample.add_window(1, 1, close_time=close, level="red", trailing_reference="r2")
        sample.add_window(2, 1, close_time=MIDNIGHT, trailing_reference="r3")

    store = filled(write)
    assert remove(store) == {"windows": 1, "reference_distributions": 20}
    left = {name for (name,) in rows_of(store, "SELECT reference_id FROM reference_distributions")}
    assert left == {"r2"} | {f"r{number}" for number in range(21, 30)}


def random_windows(sample: SampleStore, seed: int) -> list[tuple[int, datetime, str, str]]:
    """Windows over some days, many of them within a few hours: (start, close, level, domain)."""
    chance = random.Random(seed)
    made = []
    for start in range(80):
        hours = chance.choice((0, 1, 2, 40, 41, 100, 2000)) + chance.random()
        close = NOW - timedelta(days=9, hours=12) - timedelta(hours=hours)
        level, domain = chance.choice(("healthy", "red", "warn")), chance.choice(("live", "import"))
        window(
            sample, start, 0, close_time=close, level=level, domain=domain,
            lane="l" if domain == "live" else "i",
        )  # fmt: skip
        made.append((start, close, level, domain))
    return made


@pytest.mark.parametrize("batch_rows", [3, 1000])
def test_the_export_forgets_what_the_store_forgot(
    tmp_path: Path,
    filled: Callable[[Callable[[SampleStore], None]], Store],
    batch_rows: int,
) -> None:
    """However the work is cut, next to new commits, and without a list of the removed rows."""
    made: list[tuple[int, datetime, str, str]] = []
    store = filled(lambda sample: made.extend(random_windows(sample, batch_rows)))
    exporter = Exporter(store, export_folder(tmp_path), ManualClock())
    processor, records = RowProcessor(), make_records(3, 6)
    exporter.export_tail()
    store.apply(processor.emission(records[:2]))
    exporter.export_tail()
    store.apply(processor.emission(records[2:4]))
    ((others,),) = rows_of(store, "SELECT count(*) FROM windows WHERE lane NOT IN ('l', 'i')")
    removed = remove(store, batch_rows=batch_rows)
    day = timedelta(days=1)
    expected = {
        start
        for start, close, level, domain in made
        if domain == "import" or close >= NOW - (50 if level == "red" else 10) * day
    }
    assert removed["windows"] == others + len(made) - len(expected)
    left = rows_of(store, "SELECT start FROM windows WHERE lane IN ('l', 'i')")
    assert {start for (start,) in left} == expected
    assert exporter.export_tail()
    for round_number in range(3):
        for table in exported_tables():
            assert exported_rows(export_folder(tmp_path), table.name) == stored_rows(
                store, table.name
            )
        if round_number == 0:
            store.apply(processor.emission(records[4:]))
            exporter.compact("minute")
        elif round_number == 1:
            exporter.compact("hour")
    assert rows_of(store, "SELECT count(*) FROM removed_rows WHERE row_key IS NOT NULL") == [(0,)]
