from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.exported import exported_rows, stored_rows
from support.shared_rows import SHAPES, RowProcessor, make_records, share_finisher

from moescope.core.clock import ManualClock
from moescope.storage.connection import connect
from moescope.storage.export import Exporter
from moescope.storage.export.layout import exported_tables
from moescope.storage.places import export_folder, store_file
from moescope.storage.query import QueryLimits
from moescope.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("late_us", [0, 200_000_000], ids=["in order", "with late rows"])
def test_the_export_follows_the_owner_through_every_commit(tmp_path: Path, late_us: int) -> None:
    """Windows that open again, histograms that are corrected: after each export, no difference."""
    records = make_records(3, 16, late_us=late_us)
    processor = RowProcessor()
    clock = ManualClock()
    removed = 0
    with Store(store_file(tmp_path), share_finisher, SHAPES) as store:
        exporter = Exporter(store, export_folder(tmp_path), clock)
        for number, record in enumerate(records, start=1):
            store.apply(processor.emission([record], sealed=number == len(records)))
            if number % 3 == 0:
                exporter.compact("minute")
            elif number % 2 == 0:
                exporter.export_tail()
            else:
                continue
            for table in exported_tables():
                assert exported_rows(export_folder(tmp_path), table.name) == stored_rows(
                    store, table.name
                )
        found = store.cursor().execute("SELECT count(*) FROM removed_rows").fetchone()
        removed = found[0] if found else 0
    assert removed > 0


def test_a_window_of_the_owner_reaches_an_analyst(tmp_path: Path) -> None:
    """From an emission to a polars frame, through the export of a running owner."""
    records = make_records(5, 12)
    processor = RowProcessor()
    limits = QueryLimits(timeout_seconds=20.0, threads=1)
    with Store(store_file(tmp_path), share_finisher, SHAPES) as store:
        exporter = Exporter(store, export_folder(tmp_path), ManualClock())
        for number, record in enumerate(records, start=1):
            store.apply(processor.emission([record], sealed=number == len(records)))
        exporter.export_tail()
        expected = store.cursor().execute(
            "SELECT window_kind, count(*), sum(tokens) FROM windows GROUP BY 1 ORDER BY 1"
        )
        rows = [(kind, count, int(tokens)) for kind, count, tokens in expected.fetchall()]
        with connect(tmp_path, limits=limits) as connection:
            frame = connection.sql(
                "SELECT window_kind, count(*), sum(tokens) FROM windows GROUP BY 1 ORDER BY 1"
            )
            assert connection.run("SELECT 1").commit_id == len(records)
    assert frame.rows() == rows
    assert {kind for kind, _, _ in rows} == {"step", "task", "time"}
