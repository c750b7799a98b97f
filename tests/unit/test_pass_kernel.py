"""Rows per expert of passes, against counting them one by one."""

from __future__ import annotations

import numpy as np
import pytest

from moescope.core.batch import Routes
from moescope.core.router_sums import FIXED_POINT
from moescope.processors.kernels.passes import load_passes, order_by_pass
from moescope.processors.kernels.ranks import BLOCK

LAYERS = 2
KEPT = 2
ROWS = (1, 5, 64, 255, 256, BLOCK + 1, 600)
"""Of each pass: below and above what bytes can count, and what a block holds."""


def loads_one_by_one(
    ids: np.ndarray, pass_of_row: np.ndarray, experts: int, skipped: set[int]
) -> np.ndarray:
    """Rows per expert [passes, L, E], of rows with distinct ids that exist."""
    counts = np.zeros((len(ROWS), LAYERS, experts), np.int64)
    for row, index in enumerate(pass_of_row.tolist()):
        for layer in set(range(LAYERS)) - skipped:
            chosen = ids[row, layer].tolist()
            if index >= 0 and len(set(chosen)) == len(chosen) and max(chosen) < experts:
                for expert in chosen:
                    counts[index, layer, expert] += 1
    return counts


@pytest.mark.parametrize("top_k", [1, 4])
@pytest.mark.parametrize("experts", [9, 64, 65, 300])
@pytest.mark.parametrize("faults", [False, True])
def test_imbalance_of_passes_equals_counting_one_by_one(
    top_k: int, experts: int, *, faults: bool
) -> None:
    """Rows of passes lie anywhere; those that no pass has, and suspicious ones, do not count."""
    rng = np.random.default_rng(top_k * experts)
    pass_of_row = rng.permutation(np.repeat(np.arange(-1, len(ROWS)), (40, *ROWS)))
    total = len(pass_of_row)
    scores = rng.random((total, LAYERS, experts))
    scores[:, 0, 3] = -1  # in every row, so that bytes would run over
    ids = np.argsort(scores, axis=2)[:, :, :top_k]
    skipped: set[int] = set()
    if faults:
        for row in range(0, total, 7):
            ids[row, 0, -1] = ids[row, 0, 0] if top_k > 1 else experts
        ids[np.flatnonzero(pass_of_row == 0), 0] = experts + 2
        skipped = {1}
    expected = loads_one_by_one(ids, pass_of_row, experts, skipped)
    routes = Routes.from_ids(ids, experts)
    starts = np.empty(len(ROWS) + 1, np.int64)
    order = order_by_pass(pass_of_row, starts)
    kept_as = np.full(len(ROWS), -1, np.int64)
    kept_as[[1, 5]] = [1, 0]
    before = rng.integers(0, 50, (KEPT, LAYERS, experts)).astype(np.uint32)
    kept = before.copy()
    imbalance = np.empty((len(ROWS), LAYERS), np.int64)

    load_passes(
        routes.gaps, routes.relabelling, np.isin(np.arange(LAYERS), list(skipped)), order, starts,
        kept_as, kept, imbalance,
    )  # fmt: skip

    expected[[1, 5]] += before[[1, 0]]
    np.testing.assert_array_equal(kept[[1, 0]], expected[[1, 5]])
    sums = expected.sum(axis=2)
    scaled = expected.max(axis=2) * FIXED_POINT * experts
    np.testing.assert_array_equal(imbalance, np.where(sums, scaled // np.maximum(sums, 1), 0))
