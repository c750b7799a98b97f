"""Views over thresholds and alerts, in the file and over the export."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.exported import exported_rows, stored_rows
from support.sample_store import MIDNIGHT, SampleStore

from moescope.core.control_tables import CONTROL_TABLES
from moescope.storage.query.sources import EXPORT, FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.storage.export import Exporter
    from moescope.storage.query import QueryPool


@pytest.fixture(params=[FILE, EXPORT])
def ask(
    request: pytest.FixtureRequest,
    sample_store: SampleStore,
    exporter: Exporter,
    open_pool: Callable[..., QueryPool],
) -> Callable[[str], list[tuple[Any, ...]]]:
    """Asks as `moescope sql` does, once everything has been written."""

    def rows(query: str) -> list[tuple[Any, ...]]:
        if request.param == EXPORT:
            exporter.export_tail()
            pool = open_pool(sample_store.export, kind=EXPORT)
        else:
            path = sample_store.directory / "moescope.duckdb"
            sample_store.connection.close()
            pool = open_pool(path, kind=FILE)
        return pool.run(query).to_polars().rows()

    return rows


def add_version(store: SampleStore, version: str, model: str, line: float) -> None:
    """A version with one line."""
    store.add("threshold_versions", version=version, model=model)
    store.add("thresholds", version=version, metric="gini", layer=3, red_high=line)


def test_current_thresholds_are_those_in_force_at_the_live_watermark(
    sample_store: SampleStore, ask: Callable[[str], list[tuple[Any, ...]]]
) -> None:
    """Not those that were replaced, that begin later, or that were switched off."""
    sample_store.add("domains", domain="live", watermark_us=100)
    sample_store.add("domains", domain="import", watermark_us=900)
    for number, (model, version, from_us) in enumerate(
        [
            ("m", "t-1", 10), ("m", "t-2", 100), ("m", "t-3", 101),
            ("n", "t-4", 50), ("n", "t-5", 50), ("o", "t-6", 10), ("o", "", 20),
        ], start=1,
    ):  # fmt: skip
        if version:
            add_version(sample_store, version, model, number)
        sample_store.add(
            "threshold_activations", activation=number, model=model, version=version,
            effective_from_us=from_us,
        )  # fmt: skip
    assert ask(
        "SELECT model, version, effective_from_us, metric, layer, red_high FROM current_thresholds"
        " ORDER BY model"
    ) == [("m", "t-2", 100, "gini", 3, 2.0), ("n", "t-5", 50, "gini", 3, 5.0)]


def test_open_alerts_are_those_that_are_not_over(
    sample_store: SampleStore, ask: Callable[[str], list[tuple[Any, ...]]]
) -> None:
    """Newest first, with the model and the last word on each."""
    sample_store.add("lanes", lane="l", model="m", domain="live")
    for number, (alert, state) in enumerate(
        [("a", "firing"), ("b", "resolved"), ("c", "no_data"), ("d", "pending")]
    ):
        began = MIDNIGHT + timedelta(seconds=number)
        sample_store.add("alerts", alert=alert, state=state, lane="l", began_at=began)
    for number in range(1, 12):
        sample_store.add("alert_events", alert="a", number=number, why=f"because {number}")
    assert ask("SELECT alert, state, model, domain, why FROM open_alerts") == [
        ("d", "pending", "m", "live", None),
        ("c", "no_data", "m", "live", None),
        ("a", "firing", "m", "live", "because 11"),
    ]


def test_every_control_table_is_exported(sample_store: SampleStore, exporter: Exporter) -> None:
    """What people and jobs decide can be asked for while an owner runs."""
    shown = [table for table in CONTROL_TABLES if table.exported]
    for table in shown:
        sample_store.add(table.name)
    exporter.export_tail()
    for table in shown:
        found = exported_rows(sample_store.export, table.name)
        assert found == stored_rows(sample_store, table.name)
        assert found.total() == 1
