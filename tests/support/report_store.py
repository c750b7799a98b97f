"""A small store with everything that a calibration report reads, names of producers hostile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.plain_calibration import write_activation, write_baseline, write_calibration
from support.sample_store import MIDNIGHT_US, SampleStore

from moescope.storage.control import insert_rows

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "<script>alert('x')</script><img src=http://example.com/x onerror=alert(1)>"
LAYERS = (1, 3, 4)
WINDOWS = 400
SECOND = 1_000_000
_SIZE = 5 * SECOND
_KIND = {
    "phase": "decode", "window_kind": "time", "size": _SIZE, "stride": _SIZE, "scope_kind": "all",
}  # fmt: skip
SUMMARY: dict[str, Any] = {
    "block_us": 600 * SECOND,
    "minimum_units": 29,
    "kinds": [{**_KIND, "unit": "block", "keys": 3, "keys_with_lines": 1}],
    "left_out": {
        "phases": ["train"],
        "phases_why": "no run has enough units for a line",
        "alert_spans": [[MIDNIGHT_US, MIDNIGHT_US + 60 * SECOND]],
        "suspect_units": [{**_KIND, "units": 2, "trimmed": True}],
    },
    "change_guard": {"held": True},
    "paging_missing": [{**_KIND, "family": "router", "why": HOSTILE}],
    "held_out": {
        "rates": [
            {**_KIND, "metric": "gini", "line": "warn", "rate": 0.11, "low": 0.07, "high": 0.13,
             "windows": 80},
            {**_KIND, "metric": "gini", "line": "red", "rate": 0.04, "low": 0.002, "high": 0.02,
             "windows": 80},
        ]
    },
}  # fmt: skip


def report_store(directory: Path, *, name: str = HOSTILE) -> SampleStore:
    """Windows of one lane, versions t-1 (in force before) and t-2 (a draft), rules, exceedances."""
    store = SampleStore.create(directory)
    connection = store.connection
    store.add(
        "lanes", lane="l", domain="live", model=name, revision="r", origin="model",
        fidelity="full", sampling_ratio=1.0, experts=8, top_k=2, layers=list(LAYERS),
    )  # fmt: skip
    store.add_window(
        0, 1, lane="l", model=name, revision="r", origin="model", fidelity="full",
        sampling_ratio=1.0, experts=8, top_k=2, band="2:9", coverage=1.0, scene=name, **_KIND,
    )  # fmt: skip
    # One row becomes many: values come from hashes, so that they are the same each time.
    connection.execute(
        f"""
        CREATE TEMP TABLE one AS SELECT * FROM windows;
        DELETE FROM windows;
        INSERT INTO windows BY NAME SELECT one.* REPLACE (
            n * {_SIZE} AS start, layers.layer AS layer,
            make_timestamp({MIDNIGHT_US} + n * {_SIZE}) AS first_time,
            make_timestamp({MIDNIGHT_US} + n * {_SIZE} + 4000000) AS last_time,
            make_timestamp({MIDNIGHT_US} + (n + 1) * {_SIZE}) AS close_time,
            0.2 + 0.1 * layers.layer / 4 + 0.2 * (hash(n, layers.layer) % 1000) / 1000 AS gini,
            0.02 + 0.03 * (hash(n, layers.layer, 'js') % 1000) / 1000 AS js_uniform,
            40 + (hash(n, layers.layer, 'top1') % 1000) / 50 AS top1_switches
        ) FROM one, range({WINDOWS}) t(n), (SELECT unnest({list(LAYERS)}) AS layer) layers
        """
    )
    write_baseline(connection, {"without_alerts": True})
    write_calibration(connection, "t-1", status="retired", condition="start % 10000000 = 0")
    write_calibration(connection, "t-2", summary=SUMMARY)
    write_activation(connection, 1, "t-1", MIDNIGHT_US)
    rule = {
        **_KIND, "version": "t-2", "family": "load", "line": 1.5, "needed": 2, "of_slots": 3,
        "expected_per_day": 0.25, "bound_per_day": 0.9, "only_bound": False,
    }  # fmt: skip
    short = {"family": "routing", "only_bound": True, "bound_per_day": 3.0}
    insert_rows(connection, "paging_rules", [rule, rule | short], 1)
    slot = {
        **_KIND, "lane": "l", "scope_value": "", "family": "load", "version": "t-2",
        "metric": "gini", "layer": 3, "start": 0, "request": "", "windows": 1, "red_windows": 0,
        "mixed_windows": 0,
    }  # fmt: skip
    slots = [
        slot | {"slot": MIDNIGHT_US + n * _SIZE, "value": (n % 17) / 8 - 1} for n in range(WINDOWS)
    ]
    insert_rows(connection, "exceedances", slots, 1)
    reference = {"version": "t-2", "phase": "decode", "tokens": 900, "counts": b"\0"}
    insert_rows(
        connection, "baseline_references",
        [reference | {"scene": name}, reference | {"scene": "chat", "tokens": 100}], 1,
    )  # fmt: skip
    return store
