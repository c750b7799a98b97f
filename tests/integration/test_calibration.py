from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.small_fleet import SMALL_MODEL, SMALL_ROUTER

from moescope.core.errors import InputError, InsufficientDataError
from moescope.core.thresholds import LineKey, LineSource, ThresholdBook
from moescope.jobs.baselines import Baseline, Span, read_baseline, scopes_of, store_baseline
from moescope.jobs.calibration import (
    FEW_UNITS,
    CalibrationOptions,
    activate,
    calibrate,
    diff,
    earliest_activation,
    held_out_check,
    rollback,
    store_calibration,
)
from moescope.jobs.calibration.lifecycle import LATEST_AHEAD_US
from moescope.processors.config import WindowConfig
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.batch_log import BatchLogSource
from moescope.producers.simulator import TrafficSpec, scenario_named, simulate
from moescope.storage.control import insert_rows, read_versions
from moescope.storage.shared import WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

    from moescope.core.thresholds import ThresholdScope
    from moescope.jobs.calibration import Calibration

SECOND_US = 1_000_000
OPTIONS = CalibrationOptions(block_us=SECOND_US, resamples=60)
BY: dict[str, Any] = {"author": "tester", "reason": "to see"}
CONFIG = WindowConfig(
    token=((8, 8),), time=((SECOND_US, SECOND_US),), step=(), node_scope=False, task=False,
    row_budget=10**6,
)  # fmt: skip
TRAFFIC = TrafficSpec(
    tasks_per_second=12.0, prompt_median=20, prompt_max=32, output_median=6, output_max=7,
    think_s=1.0,
)  # fmt: skip


class Fleet:
    """A store with simulated health, and what judges by it."""

    def __init__(self, folder: Path) -> None:
        self.book = ThresholdBook()
        self.store = Store(
            folder / "store.duckdb", WindowFinisher(), WindowShapes(CONFIG.time, CONFIG.step),
            book=self.book,
        )  # fmt: skip

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """For reading."""
        return self.store.cursor()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """32 s of a small healthy fleet, rolled up once for all tests."""
    folder = tmp_path_factory.mktemp("calibration")
    small = replace(
        scenario_named("healthy"), model=SMALL_MODEL, router=SMALL_ROUTER, traffic=TRAFFIC
    )
    simulate(small, folder / "log", seed=5, duration_s=32, nodes=2)
    made = Fleet(folder)
    with BatchLogSource(folder / "log") as source, made.store:
        Pipeline(
            source, made.store, WindowFinisher(), CONFIG, commit_interval=60.0, commit_records=512
        ).run(until_idle=True)
        yield made


@pytest.fixture(scope="module")
def baseline(fleet: Fleet) -> Baseline:
    """Everything, as a stored baseline."""
    return store_baseline(fleet.store, Baseline(name="all"), **BY)


@pytest.fixture(scope="module")
def made(fleet: Fleet, baseline: Baseline) -> Calibration:
    """Lines from everything."""
    return calibrate(fleet.cursor(), baseline, only_scope(fleet, baseline), options=OPTIONS)


def only_scope(fleet: Fleet, baseline: Baseline) -> ThresholdScope:
    """The one model of the fleet."""
    (scope,) = scopes_of(fleet.cursor(), baseline)
    return scope


def test_lines_are_plain_quantiles_of_stored_windows(fleet: Fleet, made: Calibration) -> None:
    """Against sorted Python lists: rank ⌈(n + 1)p⌉ of the layer's complete token windows."""
    key = LineKey("prefill", "token", 8, 8, "all", "", "")
    lines = made.version.lines[key]["gini"]
    assert lines.source is LineSource.OWN
    for place, layer in enumerate(made.version.layers):
        rows = fleet.cursor().execute(
            "SELECT gini FROM windows WHERE window_kind = 'token' AND phase = 'prefill' AND"
            " complete AND layer = ?",
            [layer],
        )
        values = sorted(row[0] for row in rows.fetchall())
        for line, p in ((lines.warn_high, 0.9), (lines.red_high, 0.99)):
            assert line[place] == values[math.ceil((len(values) + 1) * p - 1e-9) - 1]
    units = fleet.cursor().execute(
        "SELECT count(DISTINCT request) FROM windows WHERE window_kind = 'token' AND"
        " phase = 'prefill' AND complete"
    )
    assert lines.units == units.fetchall()[0][0] >= 299


def test_the_same_windows_and_seed_give_the_same_calibration(
    fleet: Fleet, baseline: Baseline, made: Calibration
) -> None:
    """Two people who calibrate the same baseline have to agree to the last bit."""
    again = calibrate(fleet.cursor(), baseline, made.version.scope, options=OPTIONS)
    assert again.summary == made.summary
    assert again.version.paging == made.version.paging
    for key, metrics in made.version.lines.items():
        for metric, lines in metrics.items():
            other = again.version.lines[key][metric]
            np.testing.assert_array_equal(lines.red_high, other.red_high)
            np.testing.assert_array_equal(lines.warn_low, other.warn_low)


def test_references_hold_every_token_of_known_scene(fleet: Fleet, made: Calibration) -> None:
    """The stored reference is made of all folds, scene by scene."""
    reference = made.version.references["prefill"]
    rows = fleet.cursor().execute(
        "SELECT scope_value, layer, counts FROM windows WHERE window_kind = 'time' AND"
        " scope_kind = 'scene' AND phase = 'prefill' AND complete"
    )
    expected: dict[str, dict[int, list[int]]] = {}
    for scene, layer, counts in rows.fetchall():
        total = expected.setdefault(scene, {}).setdefault(layer, [0] * len(counts))
        expected[scene][layer] = [a + b for a, b in zip(total, counts, strict=True)]
    assert reference.scenes.keys() == expected.keys()
    for scene, by_layer in expected.items():
        plain = [by_layer[layer] for layer in made.version.layers]
        np.testing.assert_array_equal(reference.scenes[scene], plain)


def test_shifts_of_the_baseline_are_not_measured_against_themselves(
    fleet: Fleet, baseline: Baseline, made: Calibration
) -> None:
    """Windows judged later meet a reference without them; their lines have to allow for that."""
    key = LineKey("prefill", "token", 8, 8, "all", "", "")
    assert not np.isnan(made.version.lines[key]["routing_shift"].red_high).any()
    name = store_calibration(fleet.store, made, **BY)
    rates = held_out_check(fleet.cursor(), name, baseline, options=OPTIONS).rates
    (shift,) = [
        rate for rate in rates
        if (rate.phase, rate.window_kind, rate.metric, rate.line)
        == ("prefill", "token", "routing_shift", "warn")
    ]  # fmt: skip
    # The same windows against the whole reference are nearer to it than when cross-fitted.
    assert shift.rate < 0.105


def test_a_version_is_stored_whole_and_never_overwritten(fleet: Fleet, made: Calibration) -> None:
    """What the book reads back judges as what was calibrated, under a name of its own."""
    first, second = (store_calibration(fleet.store, made, **BY) for _ in range(2))
    assert first != second
    assert diff(fleet.cursor(), first, second) == []
    stored = read_versions(fleet.cursor(), [first])[first]
    assert stored.lines.keys() == made.version.lines.keys()
    for key, metrics in stored.lines.items():
        for metric, lines in metrics.items():
            calibrated = made.version.lines[key][metric]
            np.testing.assert_array_equal(lines.red_high, calibrated.red_high)
            np.testing.assert_array_equal(lines.spread, calibrated.spread)
    ends = fleet.cursor().execute(
        "SELECT count(*) FILTER (red_high_from > red_high OR red_high_to < red_high),"
        " count(*) FILTER (red_high_from IS NOT NULL) FROM thresholds WHERE version = ?",
        [first],
    )
    wrong, known = ends.fetchall()[0]
    assert (wrong, known > 0) == (0, True)


def test_versions_judge_only_ahead_of_the_watermark(fleet: Fleet, made: Calibration) -> None:
    """A window that has closed keeps its level: thresholds never reach back."""
    scope = made.version.scope
    first, second = (store_calibration(fleet.store, made, **BY) for _ in range(2))
    (reached,) = fleet.cursor().execute("SELECT max(watermark_us) FROM domains").fetchall()[0]
    earliest = earliest_activation(fleet.cursor(), scope)
    assert earliest >= reached + 60 * SECOND_US
    with pytest.raises(InputError, match="that early"):
        activate(fleet.store, first, effective_from_us=earliest - 1, **BY)
    with pytest.raises(InputError, match="that late"):
        activate(fleet.store, first, effective_from_us=earliest + LATEST_AHEAD_US + 1, **BY)
    assert activate(fleet.store, first, **BY).effective_from_us == earliest
    with pytest.raises(InputError, match="already"):
        activate(fleet.store, first, **BY)
    activate(fleet.store, second, effective_from_us=earliest + 50, **BY)
    assert status(fleet, first, second) == ["retired", "active"]
    assert rollback(fleet.store, scope, **BY) == (earliest + 50, first)
    assert status(fleet, first, second) == ["active", "retired"]
    assert rollback(fleet.store, scope, **BY) == (earliest + 50, "")
    assert status(fleet, first, second) == ["retired", "retired"]
    with pytest.raises(InputError, match="No thresholds"):
        rollback(fleet.store, scope, **BY)


def test_times_of_imports_do_not_postpone_thresholds_of_live_traffic(
    fleet: Fleet, made: Calibration
) -> None:
    """A file with dates in the far future, of the model that is served, changes nothing."""
    scope = made.version.scope
    before = earliest_activation(fleet.cursor(), scope)

    def plant(connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
        (lane,) = rows_of(connection, "SELECT * FROM lanes LIMIT 1")
        insert_rows(connection, "lanes", [{**lane, "lane": "x", "domain": "import:x"}], commit_id)
        (domain,) = rows_of(connection, "SELECT * FROM domains LIMIT 1")
        far = {**domain, "domain": "import:x", "watermark_us": 9_000_000_000_000_000}
        insert_rows(connection, "domains", [far], commit_id)

    def remove(connection: duckdb.DuckDBPyConnection, _: int) -> None:
        for table in ("lanes", "domains"):
            connection.execute(f"DELETE FROM {table} WHERE domain = 'import:x'")

    fleet.store.change(plant, author="test", action="plant")
    try:
        assert earliest_activation(fleet.cursor(), scope) == before
    finally:
        fleet.store.change(remove, author="test", action="remove")


def rows_of(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    """Rows by name of column, but for the commit."""
    answer = connection.execute(query)
    names = [column[0] for column in answer.description or ()]
    found = [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
    return [{name: row[name] for name in row if name != "commit_id"} for row in found]


def status(fleet: Fleet, *versions: str) -> list[str]:
    """Status of versions."""
    rows = dict(fleet.cursor().execute("SELECT version, status FROM threshold_versions").fetchall())
    return [rows[version] for version in versions]


def test_too_few_units_are_named(fleet: Fleet, baseline: Baseline) -> None:
    """Exit code 4, and how many requests or blocks are missing."""
    begin = fleet.cursor().execute("SELECT min(epoch_us(first_time)) FROM windows").fetchall()[0][0]
    short = replace(baseline, name="short", spans=(Span(begin, begin + 1_200_000),))
    with pytest.raises(InsufficientDataError, match=r"missing to 29") as raised:
        calibrate(fleet.cursor(), short, only_scope(fleet, baseline), options=OPTIONS)
    assert raised.value.exit_code == 4


def test_lines_from_one_half_hold_on_the_other(fleet: Fleet, baseline: Baseline) -> None:
    """Healthy traffic that calibration did not see is past its lines about as often as promised."""
    begin, end = (
        fleet.cursor()
        .execute("SELECT min(epoch_us(first_time)), max(epoch_us(last_time)) + 1 FROM windows")
        .fetchall()[0]
    )
    middle = (begin + end) // 2
    first = store_baseline(fleet.store, Baseline(name="half", spans=(Span(begin, middle),)), **BY)
    second = Baseline(name="other half", spans=(Span(middle, end),))
    scope = only_scope(fleet, baseline)
    checked = calibrate(fleet.cursor(), first, scope, options=OPTIONS, held_out=second)
    facts = checked.summary["held_out"]
    warn = [
        rate for rate in facts["rates"] if rate["line"] == "warn" and rate["window_kind"] == "token"
    ]
    assert len(warn) >= 10
    assert 0.5 < np.median([rate["rate"] / rate["nominal"] for rate in warn]) < 2.0
    assert sum(rate["inside"] for rate in warn) >= 0.7 * len(warn)
    name = store_calibration(fleet.store, checked, **BY)
    again = held_out_check(fleet.cursor(), name, second, options=OPTIONS)
    assert again.to_json() == facts
    # What was read is either tried or said to be left out.
    tried = {(rate.window_kind, rate.size, rate.metric) for rate in again.rates}
    left_out = {(each.window_kind, each.size, each.metric) for each in again.left_out}
    assert left_out
    assert not tried & left_out
    assert all(each.units < 29 for each in again.left_out if each.why == FEW_UNITS)
    assert all(rate.units >= 29 for rate in again.rates)


def test_baselines_are_numbered_and_read_back(fleet: Fleet) -> None:
    """A baseline that is made again is another version; the first stays as it was."""
    spans = (Span(10, 20),)
    first = store_baseline(
        fleet.store, Baseline(name="night", spans=spans, nodes=("a",), without_nodes=("b",)), **BY
    )
    second = store_baseline(fleet.store, replace(first, spans=(Span(30, 40),)), **BY)
    assert (first.version, second.version) == (1, 2)
    assert read_baseline(fleet.cursor(), "night", 1) == first
    assert read_baseline(fleet.cursor(), "night") == second
    with pytest.raises(InputError, match="There is no baseline"):
        read_baseline(fleet.cursor(), "day")


def test_incidents_and_bad_nodes_are_left_out(fleet: Fleet, baseline: Baseline) -> None:
    """A span that is out takes every window that touches it; a bad node, every window of it."""
    scope = only_scope(fleet, baseline)
    begin, end = (
        fleet.cursor()
        .execute("SELECT min(epoch_us(first_time)), max(epoch_us(last_time)) FROM windows")
        .fetchall()[0]
    )
    out = Span(begin + (end - begin) // 2, end + 1)
    half = replace(baseline, without_spans=(out,))
    found = calibrate(fleet.cursor(), half, scope, options=OPTIONS)
    assert all(kind["to_us"] < out.from_us for kind in found.summary["kinds"])
    (node,) = fleet.cursor().execute("SELECT min(node) FROM windows WHERE node <> ''").fetchall()[0]
    one = calibrate(
        fleet.cursor(), replace(baseline, without_nodes=(node,)), scope, options=OPTIONS
    )
    scopes = {(kind["window_kind"], kind["scope_kind"]) for kind in one.summary["kinds"]}
    assert ("token", "all") in scopes
    assert not scopes & {("time", "all"), ("time", "scene")}
