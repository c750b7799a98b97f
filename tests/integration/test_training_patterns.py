from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.declared_rows import add_rows, empty_database
from support.small_fleet import SMALL_MODEL, SMALL_ROUTER

from moescope.jobs.patterns.training import HISTORY_WINDOWS, training_findings
from moescope.processors.config import WindowConfig
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.batch_log import BatchLogSource
from moescope.producers.replay import Replay
from moescope.producers.simulator import scenario_named, simulate
from moescope.producers.simulator.incidents import ExpertCollapse
from moescope.storage.shared import WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

    from moescope.jobs.patterns import Finding

ALWAYS = (0, 2**53)
T0 = 1_700_000_000_000_000
SECOND = 1_000_000
LAYERS, EXPERTS, SEQUENCES, TOKENS = 3, 16, 12, 64


def roll_up(log: Path, file: Path, steps: int) -> list[Finding]:
    """Findings in the step windows of a log."""
    config = WindowConfig(
        token=((128, 128),), time=((60_000_000, 60_000_000),), step=((steps, steps),),
        node_scope=False, task=False, row_budget=0,
    )  # fmt: skip
    shapes = WindowShapes(config.time, config.step)
    with BatchLogSource(log) as source, Store(file, WindowFinisher(), shapes) as store:
        Pipeline(
            source, store, WindowFinisher(), config, commit_interval=60.0, commit_records=512
        ).run(until_idle=True)
        return [*training_findings(store.cursor(), *ALWAYS)]


@pytest.mark.parametrize(
    ("recording", "expected"), [("training_sorted", [24]), ("training_shuffled", [])]
)
def test_sorted_data_are_named_in_a_real_run(
    repository_root: Path, tmp_path: Path, recording: str, expected: list[int]
) -> None:
    """Two real runs that differ in the order of their data: one drifts from step 24 on."""
    with Replay(tmp_path / "log", "trainer", domain="live") as replay:
        replay.play(repository_root / "examples/tiny_moe/recordings", recording, T0)
    found = roll_up(tmp_path / "log", tmp_path / "store.duckdb", 4)
    assert [(each.pattern, each.evidence["first_step"]) for each in found] == [
        ("data_order_drift", step) for step in expected
    ]
    for each in found:
        assert each.evidence["sources_before"] == {"code": 1.0}
        assert each.evidence["sources_since"] == {"json": 0.5, "prose": 0.5}


@pytest.mark.parametrize("effect", [True, False])
def test_a_collapsing_layer_is_named(tmp_path: Path, *, effect: bool) -> None:
    """A simulated run that loses experts of one layer is named with it; its healthy twin is not."""
    incident = ExpertCollapse(
        name="collapse", layers=(1,), stages=10, bias=-3.0, survivors=4, effect=effect
    )
    scenario = replace(
        scenario_named("training"), model=SMALL_MODEL, router=SMALL_ROUTER, incidents=(incident,)
    )
    simulate(scenario, tmp_path / "log", seed=3, duration_s=100, nodes=1)
    found = roll_up(tmp_path / "log", tmp_path / "store.duckdb", 5)
    assert [(each.pattern, each.evidence["layers"]) for each in found] == [
        ("expert_collapse", [SMALL_MODEL.layers[1]])
    ] * effect


def windows(
    number: int, *, sorted_after: int | None = None, scene: str = "", collapse_after: int = 10**6
) -> Iterator[dict[str, Any]]:
    """Step windows of a run in which sources choose their own experts."""
    draw = np.random.default_rng(11)
    names = ("code", "json", "prose")
    likings = draw.dirichlet(np.full(EXPERTS, 2.0), (len(names), LAYERS))
    for window in range(number):
        shares = np.full(3, 1 / 3)
        if sorted_after is not None:
            shares = np.eye(3)[0 if window < sorted_after else 1]
        sequences = draw.multinomial(SEQUENCES, shares)
        for layer in range(LAYERS):
            p = (sequences / SEQUENCES) @ likings[:, layer]
            if layer == 1 and window >= collapse_after:
                p = np.where(np.arange(EXPERTS) < 4, p, p / 50)
            counts = draw.multinomial(SEQUENCES * TOKENS * 2, p / p.sum())
            share = counts / counts.sum()
            entropy = -(share * np.log(np.maximum(share, 1e-12))).sum() / np.log(EXPERTS)
            yield {
                "lane": "lane", "phase": "train", "scope_kind": "all", "window_kind": "step",
                "size": 5, "stride": 5, "start": 5 * window, "layer": layer,
                "tokens": SEQUENCES * TOKENS, "requests": SEQUENCES,
                "scenes": [scene or name for name in names[: 1 if scene else 3]],
                "scene_tokens": [SEQUENCES * TOKENS] if scene else (sequences * TOKENS).tolist(),
                "counts": counts.tolist(), "load_entropy": float(entropy),
                "cold_expert_share": float(np.mean(counts < counts.mean() / 10)),
                "first_time": T0 + window * SECOND, "last_time": T0 + (window + 1) * SECOND - 1,
                "close_time": T0 + (window + 3) * SECOND, "complete": True,
            }  # fmt: skip


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """Empty tables."""
    with empty_database() as connection:
        yield connection


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({}, []),
        ({"sorted_after": 12}, ["data_order_drift"]),
        ({"collapse_after": 12}, ["expert_collapse"]),
    ],
)
def test_runs_are_named_by_what_changed(
    database: duckdb.DuckDBPyConnection, run: dict[str, Any], expected: list[str]
) -> None:
    """Order of the data and collapse are told apart, and unknown sources never blamed."""
    add_rows(database, "windows", [*windows(24, **run)])
    found = [*training_findings(database, *ALWAYS)]
    assert [each.pattern for each in found] == expected
    for each in found:
        assert each.evidence["first_step"] == 5 * 12
        assert each.began_us == T0 + 12 * SECOND
        assert each.ended_us == T0 + 24 * SECOND - 1
        assert 0.999 < each.confidence <= 1


@pytest.mark.parametrize("run", [{"sorted_after": 12}, {"collapse_after": 12}])
def test_without_sources_the_order_is_not_blamed(
    database: duckdb.DuckDBPyConnection, run: dict[str, Any]
) -> None:
    """Who does not tell sources hears of a narrowing load with half the confidence, and why."""
    add_rows(database, "windows", [*windows(24, **run, scene="unknown")])
    (finding,) = training_findings(database, *ALWAYS)
    assert finding.pattern == "expert_collapse"
    assert finding.evidence["sources_known"] is False
    assert 0.49 < finding.confidence <= 0.5


def test_only_runs_that_go_on_are_looked_at(database: duckdb.DuckDBPyConnection) -> None:
    """A run without a window in the span costs nothing, and windows after it do not count."""
    add_rows(database, "windows", [*windows(24, sorted_after=12)])
    assert not [*training_findings(database, T0 + 60 * SECOND, 2**53)]
    assert not [*training_findings(database, 0, T0 + 14 * SECOND)]


def test_a_layer_that_lacks_a_window_leaves_it_out(database: duckdb.DuckDBPyConnection) -> None:
    """Rows that were pruned or that saw too little break no arithmetic."""
    rows = [
        row | {"level_reason": "coverage" if row["start"] == 20 else None}
        for row in windows(24, sorted_after=12)
        if (row["start"], row["layer"]) != (30, 2)
    ]
    add_rows(database, "windows", rows)
    (finding,) = training_findings(database, *ALWAYS)
    assert finding.pattern == "data_order_drift"


@pytest.mark.parametrize("start", [5 * 4, 5 * 20])
@pytest.mark.parametrize(
    ("run", "named"),
    [({"sorted_after": 12}, "data_order_drift"), ({"collapse_after": 12}, "expert_collapse")],
)
def test_a_layer_whose_rows_were_suspicious_blinds_for_one_window(
    database: duckdb.DuckDBPyConnection, start: int, run: dict[str, Any], named: str
) -> None:
    """Values that are null, or of a few tokens, enter no sum that all later windows build on."""
    unknown = {
        "tokens": 0, "counts": [0] * EXPERTS, "load_entropy": None, "cold_expert_share": None,
        "level_reason": "suspicious rows",
    }  # fmt: skip
    rows = [
        row | (unknown if (row["start"], row["layer"]) == (start, 1) else {})
        for row in windows(24, **run)
    ]
    add_rows(database, "windows", rows)
    (finding,) = training_findings(database, *ALWAYS)
    assert finding.pattern == named
    assert finding.evidence["first_step"] == 5 * 12


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        (None, ["data_order_drift"]),
        ("no threshold", ["data_order_drift"]),
        ("suspicious rows", []),
        ("coverage", []),
        ("coverage unknown", []),
    ],
)
def test_windows_with_a_few_lost_rows_are_named(
    database: duckdb.DuckDBPyConnection, reason: str | None, named: list[str]
) -> None:
    """A run that loses a row in each step is watched; steps that saw too little say nothing."""
    rows = windows(24, sorted_after=12)
    add_rows(
        database, "windows", [row | {"complete": False, "level_reason": reason} for row in rows]
    )
    found = training_findings(database, *ALWAYS)
    assert [finding.pattern for finding in found] == named


def test_history_is_bounded(database: duckdb.DuckDBPyConnection) -> None:
    """A run of any length is compared with its latest windows."""
    add_rows(database, "windows", [*windows(HISTORY_WINDOWS + 30, sorted_after=20)])
    assert not [*training_findings(database, *ALWAYS)]
