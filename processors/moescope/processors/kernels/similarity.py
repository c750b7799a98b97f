"""Counts per request in a pane, and their sums over requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.router_sums import FIXED_POINT
from moescope.processors.compilation import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray


@compiled
def add_counts(
    chosen: NDArray[np.int64],
    row_of_cell: NDArray[np.int64],
    counts: NDArray[np.unsignedinteger[Any]],
    sums: NDArray[np.uint32],
) -> None:
    """Add counts [cells, L·E] of the chosen cells to the rows of `sums` that are named."""
    for index in range(len(chosen)):
        source = counts[chosen[index]]
        target = sums[row_of_cell[index]]
        for i in range(len(source)):
            target[i] += source[i]


@compiled
def sum_requests(
    counts: NDArray[np.integer[Any]],
    top_k: int,
    fewest_tokens: int,
    weighted: NDArray[np.int64],
    squares: NDArray[np.int64],
    requests: NDArray[np.int64],
    left_out: NDArray[np.int64],
) -> None:
    """Sum requests up as `SimilaritySums` says.

    Args:
        counts: [R, L, E], of each request.
        top_k: k.
        fewest_tokens: of a request that is compared.
        weighted: out, int64 [L, E], added to. squares, requests, left_out: out, int64 [L].
    """
    for request in range(len(counts)):
        for layer in range(len(requests)):
            mine = counts[request, layer]
            assignments = np.int64(0)
            square = np.int64(0)
            for expert in range(len(mine)):
                count = np.int64(mine[expert])
                assignments += count
                square += count * count
            tokens = assignments // top_k
            if tokens < fewest_tokens:
                continue
            excess = square - top_k * tokens
            if excess <= 0:
                left_out[layer] += 1
                continue
            length = np.sqrt(np.float64(excess * tokens) / np.float64(tokens - 1))
            out = weighted[layer]
            total = np.int64(0)
            for expert in range(len(mine)):
                weight = np.int64(np.rint(np.float64(mine[expert]) / length * FIXED_POINT))
                out[expert] += weight
                total += weight * weight
            squares[layer] += total
            requests[layer] += 1
