from __future__ import annotations

import numpy as np
import pytest

from moescope.core.batch import Routes
from moescope.processors.kernels.count import BLOCK, count_rows

LAYERS = 2


def distinct_ids(rng: np.random.Generator, tokens: int, experts: int, top_k: int) -> np.ndarray:
    """Random ids [T, L, k] without repeats."""
    return np.argsort(rng.random((tokens, LAYERS, experts)), axis=2)[:, :, :top_k]


def plain_counts(
    ids: np.ndarray, cell_of_row: np.ndarray, experts: int, skipped: set[int]
) -> tuple[dict[tuple[int, int, int], int], int]:
    """Counts by (cell, layer, expert), and suspicious pairs, one id at a time."""
    counts: dict[tuple[int, int, int], int] = {}
    suspicious = 0
    for row, cell in enumerate(cell_of_row.tolist()):
        if cell < 0:
            continue
        for layer in range(LAYERS):
            chosen = ids[row, layer].tolist()
            if layer in skipped or len(set(chosen)) < len(chosen) or max(chosen) >= experts:
                suspicious += 1
                continue
            for expert in chosen:
                counts[cell, layer, expert] = counts.get((cell, layer, expert), 0) + 1
    return counts, suspicious


@pytest.mark.parametrize("top_k", [1, 3, 4, 6, 8])
@pytest.mark.parametrize("experts", [9, 64, 65, 300])
@pytest.mark.parametrize("faults", [False, True])
def test_counts_equal_counting_one_by_one(top_k: int, experts: int, *, faults: bool) -> None:
    """Short and long runs, odd ones, and runs across blocks count every id once."""
    rng = np.random.default_rng(top_k * experts)
    runs = [1, 2, 5, 15, 16, 17, 40, BLOCK, 3, BLOCK + 7, 64]
    cell_of_row = np.repeat(np.arange(len(runs)), runs)
    cell_of_row[cell_of_row == 4] = -1
    ids = distinct_ids(rng, len(cell_of_row), experts, top_k)
    skipped: set[int] = set()
    if faults:
        ids[3, 0, -1] = ids[3, 0, 0] if top_k > 1 else experts
        ids[BLOCK, 1, 0] = experts + 2
        skipped = {1}
    routes = Routes.from_ids(ids, experts)
    counts = np.zeros((len(runs), LAYERS, experts), np.uint16)
    suspicious = count_rows(
        routes.gaps, routes.relabelling, np.isin(np.arange(LAYERS), list(skipped)),
        0, len(cell_of_row), cell_of_row.astype(np.int32), counts,
    )  # fmt: skip
    expected, expected_suspicious = plain_counts(ids, cell_of_row, experts, skipped)
    found = {tuple(where): int(counts[tuple(where)]) for where in np.argwhere(counts).tolist()}
    assert found == expected
    assert suspicious == expected_suspicious


def test_counts_are_added_to_what_is_there() -> None:
    """A batch that is planned in two pieces counts the same as in one."""
    ids = distinct_ids(np.random.default_rng(1), 100, 16, 4)
    routes = Routes.from_ids(ids, 16)
    cell_of_row = np.zeros(100, np.int32)
    nothing = np.zeros(LAYERS, np.bool_)
    pieces, whole = (np.zeros((1, LAYERS, 16), np.uint16) for _ in range(2))
    count_rows(routes.gaps, routes.relabelling, nothing, 0, 33, cell_of_row, pieces)
    count_rows(routes.gaps, routes.relabelling, nothing, 33, 100, cell_of_row, pieces)
    count_rows(routes.gaps, routes.relabelling, nothing, 0, 100, cell_of_row, whole)
    np.testing.assert_array_equal(pieces, whole)
    assert int(whole.sum()) == ids.size
