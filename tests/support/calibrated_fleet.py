"""A small healthy fleet, simulated, rolled up and really calibrated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from support.small_fleet import SMALL_MODEL, SMALL_ROUTER

from moescope.jobs.baselines import Baseline, Span, scopes_of, store_baseline
from moescope.jobs.calibration import CalibrationOptions, calibrate, store_calibration
from moescope.jobs.reports import ReportFiles, calibration_report
from moescope.processors.config import WindowConfig
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.batch_log import BatchLogSource
from moescope.producers.simulator import TrafficSpec, scenario_named, simulate
from moescope.storage.shared import WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path

SECOND_US = 1_000_000
CONFIG = WindowConfig(
    token=((8, 8),), time=((SECOND_US, SECOND_US),), step=(), node_scope=False, task=False,
    row_budget=10**6,
)  # fmt: skip
TRAFFIC = TrafficSpec(
    tasks_per_second=12.0, prompt_median=20, prompt_max=32, output_median=6, output_max=7,
    think_s=1.0,
)  # fmt: skip
OPTIONS = CalibrationOptions(block_us=SECOND_US, resamples=60)


def calibrated_report(folder: Path, *, seconds: int = 32) -> ReportFiles:
    """The report of lines made from the first two thirds, tried on the last."""
    healthy = replace(
        scenario_named("healthy"), model=SMALL_MODEL, router=SMALL_ROUTER, traffic=TRAFFIC
    )
    simulate(healthy, folder / "log", seed=5, duration_s=seconds, nodes=2)
    shapes = WindowShapes(CONFIG.time, CONFIG.step)
    store = Store(folder / "store.duckdb", WindowFinisher(), shapes)
    with BatchLogSource(folder / "log") as source, store:
        Pipeline(
            source, store, WindowFinisher(), CONFIG, commit_interval=60.0, commit_records=512
        ).run(until_idle=True)
        row = store.cursor().execute("SELECT epoch_us(min(first_time)) FROM windows").fetchone()
        assert row is not None
        split, end = row[0] + seconds * 2 // 3 * SECOND_US, row[0] + 2 * seconds * SECOND_US
        learnt = Baseline(name="quiet", spans=(Span(row[0], split),))
        tried = Baseline(name="later", spans=(Span(split, end),))
        baseline = store_baseline(store, learnt, author="tester", reason="to see")
        (scope,) = scopes_of(store.cursor(), baseline)
        made = calibrate(store.cursor(), baseline, scope, options=OPTIONS, held_out=tried)
        version = store_calibration(store, made, author="tester", reason="to see")
        return calibration_report(store.cursor(), version, folder / "reports")
