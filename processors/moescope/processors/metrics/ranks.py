"""How evenly expert-parallel ranks share the load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.errors import InputError
from moescope.processors.metrics.counts import checked_counts

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def rank_imbalance(
    counts: ArrayLike, top_k: int, rank_of: NDArray[np.integer[Any]], ranks: int
) -> NDArray[np.float64]:
    """Load of the busiest rank in multiples of the mean: max(r) / mean(r).

    Args:
        counts: Integers [..., L, E].
        top_k: k.
        rank_of: Integers [L, E], rank of each expert; any number beyond the ranks stands for an
            expert that no single rank holds.
        ranks: R.

    Returns:
        float64 [..., L]; NaN without assignments, with more ranks than experts, and for layers
        with an expert that no single rank holds.

    Raises:
        InputError: As `count_metrics`, or the placement has another shape than the counts.
    """
    c = checked_counts(counts, top_k)
    if rank_of.shape != c.shape[-2:] or ranks < 1:
        raise InputError(
            "A placement needs a rank for each layer and expert, and at least one rank.",
            why=f"Its shape is {rank_of.shape} with {ranks} ranks, that of the counts {c.shape}.",
        )
    if ranks > c.shape[-1]:
        return np.full(c.shape[:-1], np.nan)
    holds = rank_of[:, :, None] == np.arange(ranks)
    # Counts are far below 2^53: floats add them up exactly.
    flat = c.reshape(-1, *rank_of.shape).astype(np.float64)
    loads = np.matmul(flat.transpose(1, 0, 2), holds.astype(np.float64))
    total = loads.sum(axis=2)
    known = (total > 0) & holds.any(axis=2).all(axis=1)[:, None]
    imbalance = loads.max(axis=2) * ranks / np.where(known, total, 1.0)
    return np.where(known, imbalance, np.nan).T.reshape(c.shape[:-1])
