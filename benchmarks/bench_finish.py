"""Metric values of finished windows."""

from __future__ import annotations

import numpy as np

from benchmarks.figures import Baseline, Figure, Result
from benchmarks.harness import Scale, Side, main, take_turns
from benchmarks.streams import EXPERTS, LAYERS, TOP_K, WINDOW, draw_ids, zipf_popularity
from moescope.core.metrics import METRICS
from moescope.processors.finish_kernel import finish_counts, layer_references
from moescope.processors.metrics import metric_values

TEXT = f"""
All {len(METRICS)} metrics of token windows of {WINDOW} (a row is one window at one layer; {TOP_K}
of {EXPERTS} experts), by one thread: the compiled pass that the processor and the store use,
against the plain numpy arithmetic that defines the metrics. Without a trailing reference, as in
the first ten minutes of a lane, and with one. The values agree to rounding.
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
    seconds = take_turns(
        [
            Side("alone", rows, lambda: finish_counts(counts, TOP_K)),
            Side("trailing", rows, lambda: finish_counts(counts, TOP_K, trailing=references)),
            Side("numpy", few.shape[0] * LAYERS, plainly),
        ],
        scale.pick(15, 2),
    )
    per_row = {
        "alone": [1e6 * each / rows for each in seconds["alone"]],
        "trailing": [1e6 * each / rows for each in seconds["trailing"]],
        "numpy": [1e6 * each / (len(few) * LAYERS) for each in seconds["numpy"]],
    }
    unit = "µs per row, one core"
    return Result(
        topic="finish",
        title="Metrics of finished windows",
        text=TEXT,
        order=7,
        figures=[
            Figure(
                what="no trailing reference", unit=unit, values=per_row["alone"], better="lower",
                baselines=[Baseline(name="plain numpy", values=per_row["numpy"])],
            ),
            Figure(
                what="with a trailing reference", unit=unit, values=per_row["trailing"],
                better="lower",
            ),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main("finish", measure)
