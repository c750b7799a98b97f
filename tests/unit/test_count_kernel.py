from __future__ import annotations

import numpy as np
import pytest

from moescope.core.batch import Routes
from moescope.core.router_sums import ROUTER_SUMS
from moescope.processors.kernels.count import count_rows
from moescope.processors.kernels.ranks import BLOCK
from moescope.processors.score_tables import router_planes

LAYERS = 2
NO_CELLS = np.zeros(0, np.int64)
NO_ROUTER = np.zeros((0, LAYERS, ROUTER_SUMS), np.int64)


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
        router_planes(routes, experts), 0, len(cell_of_row), cell_of_row.astype(np.int32),
        NO_CELLS, counts, NO_ROUTER,
    )  # fmt: skip
    expected, expected_suspicious = plain_counts(ids, cell_of_row, experts, skipped)
    found = {tuple(where): int(counts[tuple(where)]) for where in np.argwhere(counts).tolist()}
    assert found == expected
    assert suspicious == expected_suspicious


def test_pieces_of_a_batch_add_up_whatever_was_there() -> None:
    """A batch that is planned in two pieces counts the same as in one, in memory used before."""
    ids = distinct_ids(np.random.default_rng(1), 100, 16, 4)
    routes = Routes.from_ids(ids, 16)
    cell_of_row = np.zeros(100, np.int32)
    nothing = np.zeros(LAYERS, np.bool_)
    first, second, whole = (np.full((2, LAYERS, 16), 7, np.uint16) for _ in range(3))
    for begin, end, counts in ((0, 33, first), (33, 100, second), (0, 100, whole)):
        count_rows(
            routes.gaps, routes.relabelling, nothing, router_planes(routes, 16), begin, end,
            cell_of_row, NO_CELLS, counts, NO_ROUTER,
        )  # fmt: skip
    np.testing.assert_array_equal(first + second, whole)
    assert not whole[1].any()
    assert int(whole.sum()) == ids.size


def plain_pairs(
    ids: np.ndarray, cell_of_row: np.ndarray, before_cell: list[int], experts: int
) -> dict[tuple[int, int], list[int]]:
    """Pairs, overlap and top-1 switches by (cell, layer), row by row."""
    found: dict[tuple[int, int], list[int]] = {}
    for row, cell in enumerate(cell_of_row.tolist()):
        if cell < 0:
            continue
        before = row - 1 if row and cell_of_row[row - 1] == cell else before_cell[cell]
        if before < 0:
            continue
        for layer in range(LAYERS):
            mine, other = ids[row, layer].tolist(), ids[before, layer].tolist()
            if all(len(set(each)) == len(each) and max(each) < experts for each in (mine, other)):
                sums = found.setdefault((cell, layer), [0, 0, 0])
                sums[0] += 1
                sums[1] += len(set(mine) & set(other))
                sums[2] += mine[0] != other[0]
    return found


@pytest.mark.parametrize("top_k", [1, 4, 7])
@pytest.mark.parametrize("experts", [9, 64, 65, 300])
@pytest.mark.parametrize("faults", [False, True])
def test_pairs_equal_comparing_row_by_row(top_k: int, experts: int, *, faults: bool) -> None:
    """Overlap and switches are right within runs, across blocks, and with rows far before."""
    rng = np.random.default_rng(top_k * experts + faults)
    runs = [2, 1, 1, 5, 16, 40, BLOCK, 3, BLOCK + 7, 1, 1, 64]
    cell_of_row = np.repeat(np.arange(len(runs)), runs)
    first = [0, *np.cumsum(runs)[:-1].tolist()]
    # No row before, the row just above, and rows far above.
    before_cell = [
        -1 if n % 3 == 0 else (at - 1 if n % 3 == 1 else 0) for n, at in enumerate(first)
    ]
    cell_of_row[cell_of_row == 3] = -1
    ids = distinct_ids(rng, len(cell_of_row), experts, top_k)
    # Neighbours that share experts, so that the overlap is more than chance.
    ids[1::2] = np.where(rng.random((len(ids[1::2]), 1, 1)) < 0.5, ids[:-1:2], ids[1::2])
    if faults:
        ids[rng.integers(0, len(ids), 9), 0, -1] = experts + 1
    routes = Routes.from_ids(ids, experts, ranked=True)
    counts = np.zeros((len(runs), LAYERS, experts), np.uint16)
    router = np.zeros((len(runs), LAYERS, ROUTER_SUMS), np.int64)
    count_rows(
        routes.gaps, routes.relabelling, np.zeros(LAYERS, np.bool_), router_planes(routes, experts),
        0, len(ids), cell_of_row.astype(np.int32), np.array(before_cell), counts, router,
    )  # fmt: skip
    expected = plain_pairs(ids, cell_of_row, before_cell, experts)
    for (cell, layer), sums in np.ndenumerate(router.sum(axis=2)):
        if (cell, layer) not in expected:
            assert sums == 0
    for (cell, layer), (pairs, overlap, switches) in expected.items():
        assert router[cell, layer].tolist() == [0, 0, 0, 0, pairs, overlap, pairs, switches]
