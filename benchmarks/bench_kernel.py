"""Roll-up kernel: expert ids to counts per window and layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.baselines import (
    ONE_THREAD,
    NumpyCounts,
    assignment_rows,
    counts_from_rows,
    duckdb_with_threads,
    polars_with_threads,
)
from benchmarks.figures import Baseline, Figure, Result
from benchmarks.harness import Scale, Side, main, rates
from benchmarks.streams import EXPERTS, LAYERS, TOP_K, WINDOW, draw_ids, zipf_popularity
from moescope.core.batch import Routes
from moescope.core.router_sums import ROUTER_SUMS
from moescope.processors.kernels.count import count_rows
from moescope.processors.score_tables import router_planes

TEXT = f"""
Expert ids of {LAYERS} layers × 4,096 tokens, {TOP_K} of {EXPERTS} experts (Zipf popularity with
exponent 0.7), counted per layer and window of {WINDOW} tokens, by one thread each. moescope starts
from the gap planes of a decoded batch, and undoes gaps and relabelling; numpy starts from bytes in
the order that suits it, polars and DuckDB from a table in memory with one row per assignment. All
give the same counts: that is checked before anything is measured.
"""


def measure(scale: Scale) -> Result:
    """Measure the topic."""
    tokens = scale.pick(4096, 512)
    repetitions = scale.pick(15, 2)
    inner = scale.pick(8, 1)
    ids = draw_ids(tokens, zipf_popularity(LAYERS, EXPERTS, 0.7), TOP_K, seed=1)
    assignments = ids.size
    routes = Routes.from_ids(ids, EXPERTS)
    windows = tokens // WINDOW
    of_window = (np.arange(tokens) // WINDOW).astype(np.int32)
    one_cell = np.zeros(tokens, np.int32)
    nothing_skipped = np.zeros(LAYERS, np.bool_)
    planes = router_planes(routes, EXPERTS)
    no_cells = np.zeros(0, np.int64)
    no_router = np.zeros((0, LAYERS, ROUTER_SUMS), np.int64)
    by_window = np.zeros((windows, LAYERS, EXPERTS), np.uint16)
    whole_batch = np.zeros((1, LAYERS, EXPERTS), np.uint16)

    def count(cell_of_row: np.ndarray, counts: np.ndarray) -> None:
        count_rows(
            routes.gaps, routes.relabelling, nothing_skipped, planes, 0, tokens, cell_of_row,
            no_cells, counts, no_router,
        )  # fmt: skip

    def often(cell_of_row: np.ndarray, counts: np.ndarray) -> None:
        for _ in range(inner):
            count(cell_of_row, counts)

    numpy_counts = NumpyCounts(ids, EXPERTS, WINDOW)
    pl = polars_with_threads(ONE_THREAD)
    frame = assignment_rows(pl, ids, WINDOW)
    database = duckdb_with_threads(ONE_THREAD)
    database.register("frame", frame.to_arrow())
    database.execute('CREATE TABLE assignments AS SELECT layer, "window" AS w, expert FROM frame')

    def with_polars() -> Any:  # noqa: ANN401 (polars is loaded late)
        return frame.group_by("layer", "window", "expert").len()

    def with_duckdb() -> list[tuple[int, int, int, int]]:
        query = "SELECT layer, w, expert, count(*) FROM assignments GROUP BY ALL"
        answer: list[tuple[int, int, int, int]] = database.execute(query).fetchall()
        return answer

    count(of_window, by_window)
    shape = (LAYERS, windows, EXPERTS)
    expected = by_window.transpose(1, 0, 2)
    grouped = with_polars()
    for found in (
        numpy_counts.fused(),
        numpy_counts.by_layer(),
        counts_from_rows(shape, *(grouped[name] for name in ("layer", "window", "expert", "len"))),
        counts_from_rows(shape, *zip(*with_duckdb(), strict=True)),
    ):
        np.testing.assert_array_equal(found, expected)

    sides = [
        Side("windows", assignments * inner, lambda: often(of_window, by_window)),
        Side("batch", assignments * inner, lambda: often(one_cell, whole_batch)),
        Side("numpy fused", assignments, numpy_counts.fused),
        Side("numpy by layer", assignments, numpy_counts.by_layer),
        Side("polars", assignments, with_polars),
        Side("duckdb", assignments, with_duckdb),
    ]
    measured = rates(sides, repetitions)
    numpy_best = max(("numpy fused", "numpy by layer"), key=lambda name: sum(measured[name]))
    form = "16-bit indices, layer by layer" if numpy_best.endswith("layer") else "all at once"
    return Result(
        topic="kernel",
        title="Roll-up kernel",
        text=TEXT,
        order=1,
        figures=[
            Figure(
                what="gap planes → counts per layer and window of 128",
                unit="M assignments/s, one core",
                values=measured["windows"],
                target=1_000,
                baselines=[
                    Baseline(
                        name=f"numpy bincount, the faster of two forms ({form})",
                        values=measured[numpy_best],
                        target=4,
                    ),
                    Baseline(name="polars group_by, 1 thread", values=measured["polars"]),
                    Baseline(
                        name="DuckDB GROUP BY, 1 thread", values=measured["duckdb"], target=30
                    ),
                ],
            ),
            Figure(
                what="gap planes → counts per layer of a whole batch",
                unit="M assignments/s, one core",
                values=measured["batch"],
                target=1_000,
            ),
        ],
    )


if __name__ == "__main__":
    main("kernel", measure)
