"""Metric values of finished windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.figures import Baseline, Figure, Result
from benchmarks.harness import Scale, Side, main, take_turns
from benchmarks.streams import EXPERTS, LAYERS, TOP_K, WINDOW, draw_ids, zipf_popularity
from moescope.core.emission import LaneKey, WindowGroup
from moescope.core.metrics import JUDGED_METRICS, METRICS
from moescope.core.router_sums import ROUTER_SUMS
from moescope.core.thresholds import (
    Activation,
    BaselineReference,
    LineKey,
    LineSource,
    MetricLines,
    Standing,
    ThresholdBook,
    ThresholdScope,
    ThresholdVersion,
)
from moescope.core.vocabulary import CloseReason, ScopeKind, WindowKind
from moescope.processors.finish import WindowFinisher
from moescope.processors.finish_kernel import finish_counts, layer_references
from moescope.processors.metrics import metric_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCENES = ("chat", "code")

TEXT = f"""
The metrics ({len(METRICS)} in all) of token windows of {WINDOW} (a row is one window at one
layer; {TOP_K} of {EXPERTS} experts), by one thread: the compiled pass that the processor and the
store use, against the plain numpy arithmetic that defines the metrics. Without a trailing
reference, as in the first ten minutes of a lane, and with one. The values agree to rounding.

The whole of finishing, with router sums, histogram increments and a trailing reference: until
something is calibrated, and with a baseline of two scenes and lines for each of the
{len(JUDGED_METRICS)} judged metrics in force.
"""


def measure(scale: Scale) -> Result:
    """Measure the topic."""
    windows = scale.pick(256, 8)
    ids = draw_ids(WINDOW * windows, zipf_popularity(LAYERS, EXPERTS, 0.7), TOP_K, seed=2)
    counts = np.zeros((windows, LAYERS, EXPERTS), np.uint32)
    for layer in range(LAYERS):
        window = np.repeat(np.arange(windows), WINDOW * TOP_K)
        cell = window * EXPERTS + ids[:, layer].reshape(-1)
        counts[:, layer] = np.bincount(cell, minlength=windows * EXPERTS).reshape(windows, EXPERTS)
    rows = windows * LAYERS
    whole = counts.sum(axis=0, dtype=np.int64)
    references = layer_references(whole, TOP_K)
    few = counts[: scale.pick(16, 2)]

    def plainly() -> None:
        metric_values(few, TOP_K)

    np.testing.assert_allclose(
        finish_counts(few, TOP_K, trailing=references),
        metric_values(few, TOP_K, trailing=whole),
        rtol=1e-9,
        atol=1e-12,
    )
    group = _group(counts, whole)
    uncalibrated, calibrated = WindowFinisher(), WindowFinisher(_book(group, whole))
    seconds = take_turns(
        [
            Side("alone", rows, lambda: finish_counts(counts, TOP_K)),
            Side("trailing", rows, lambda: finish_counts(counts, TOP_K, trailing=references)),
            Side("numpy", few.shape[0] * LAYERS, plainly),
            Side("uncalibrated", rows, lambda: uncalibrated(group)),
            Side("calibrated", rows, lambda: calibrated(group)),
        ],
        scale.pick(15, 2),
    )
    per_row = {
        name: [1e6 * each / (len(few) * LAYERS if name == "numpy" else rows) for each in measured]
        for name, measured in seconds.items()
    }
    unit = "µs per row, one core"
    return Result(
        topic="finish",
        title="Metrics of finished windows",
        text=TEXT,
        order=8,
        figures=[
            Figure(
                what="no trailing reference", unit=unit, values=per_row["alone"], better="lower",
                baselines=[Baseline(name="plain numpy", values=per_row["numpy"])],
            ),
            Figure(
                what="with a trailing reference", unit=unit, values=per_row["trailing"],
                better="lower",
            ),
            Figure(
                what="whole finishing, nothing calibrated", unit=unit,
                values=per_row["uncalibrated"], better="lower",
            ),
            Figure(
                what="whole finishing, calibrated", unit=unit, values=per_row["calibrated"],
                better="lower",
            ),
        ],
    )  # fmt: skip


def _group(counts: NDArray[np.uint32], whole: NDArray[np.int64]) -> WindowGroup:
    """Complete token windows of two scenes that closed within two seconds."""
    windows = len(counts)
    rng = np.random.default_rng(3)
    nothing = np.zeros(windows, np.int64)
    return WindowGroup(
        lane=LaneKey("live", "m", "r", "served", "full", 1.0, EXPERTS, TOP_K, tuple(range(LAYERS))),
        phase="decode",
        kind=WindowKind.TOKEN,
        size=WINDOW,
        stride=WINDOW,
        scope_kind=ScopeKind.ALL,
        scope_value="",
        start=nothing,
        first_time_us=nothing,
        last_time_us=nothing,
        close_time_us=np.sort(rng.integers(0, 2_000_000, windows)),
        request=[f"request-{window}" for window in range(windows)],
        task=[""] * windows,
        scene=[SCENES[window % 2] for window in range(windows)],
        node=["node"] * windows,
        seen=np.full(windows, WINDOW),
        expected=np.full(windows, WINDOW),
        lost=nothing,
        unknown_gap=np.zeros(windows, np.bool_),
        requests=np.ones(windows, np.int64),
        close_reason=[CloseReason.COMPLETE] * windows,
        complete=np.ones(windows, np.bool_),
        weight=np.zeros(windows),
        row_version=np.ones(windows, np.int32),
        counts=counts,
        dropped=np.zeros((windows, LAYERS), np.uint64),
        trailing=whole,
        trailing_id="trailing",
        scene_tokens=[{SCENES[window % 2]: WINDOW} for window in range(windows)],
        router=rng.integers(1, 1_000, (windows, LAYERS, ROUTER_SUMS)),
    )


def _book(group: WindowGroup, whole: NDArray[np.int64]) -> ThresholdBook:
    """Lines of all judged metrics at each layer, for each scene and for all."""

    def at(value: float) -> NDArray[np.float64]:
        return np.full(LAYERS, value)

    lines = MetricLines(
        warn_low=at(-1.0), warn_high=at(0.5), red_low=at(-2.0), red_high=at(1.0), centre=at(0.0),
        spread=at(1.0), standing=Standing.FIRM, source=LineSource.OWN, units=1_000,
    )  # fmt: skip
    scope = ThresholdScope.of(group.lane)
    version = ThresholdVersion(
        version="t-1",
        scope=scope,
        layers=group.lane.layers,
        experts=EXPERTS,
        top_k=TOP_K,
        lines={
            LineKey("decode", "token", WINDOW, WINDOW, "all", scene, ""): {
                metric.name: lines for metric in JUDGED_METRICS
            }
            for scene in ("", *SCENES)
        },
        references={
            "decode": BaselineReference(
                scenes=dict.fromkeys(SCENES, whole), tokens=dict.fromkeys(SCENES, 1)
            )
        },
    )
    book = ThresholdBook()
    book.replace({"t-1": version}, {scope: (Activation(0, "t-1"),)})
    return book


if __name__ == "__main__":
    main("finish", measure)
