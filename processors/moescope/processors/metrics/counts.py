"""Load metrics of windows, from their counts alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.errors import InputError
from moescope.core.metrics import DROPS_UNKNOWN
from moescope.core.vocabulary import MAX_EXPERTS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

MAX_ASSIGNMENTS = 2**46
"""Most assignments in one window and layer: up to here, integer arithmetic is exact for any E."""


def count_metrics(
    counts: ArrayLike, top_k: int, *, dropped: ArrayLike | None = None
) -> dict[str, NDArray[np.float64]]:
    """Compute every metric that needs counts only.

    Formulas are in the registry, `moescope.core.metrics.COUNT_METRICS`. Hot and cold are decided
    in integers: c > 2m is c > ⌊2n / E⌋, and c < m/10 is c ≤ ⌊(n − 1) / (10 E)⌋.

    Args:
        counts: Integers [..., E], assignments per expert of each window and layer.
        top_k: k, experts per token.
        dropped: Integers [...], assignments (of those counted) that expert capacity dropped;
            `DROPS_UNKNOWN` where the producer does not tell. None: nowhere known.

    Returns:
        Metric name → float64 [...]. NaN where a metric is undefined: everywhere for a window
        without assignments, `load_entropy` for E = 1, `drop_rate` where drops are unknown.

    Raises:
        InputError: Counts are no non-negative integers, are too large, have no experts axis, or
            k is not in 1 … E; `dropped` has another shape or exceeds the assignments.
    """
    c = checked_counts(counts, top_k)
    experts = c.shape[-1]
    n = c.sum(axis=-1)
    ascending = np.sort(c, axis=-1)
    hot = c > (2 * n // experts)[..., None]
    cold = c <= ((n - 1) // (10 * experts))[..., None]
    above_mean = (c * experts - n[..., None]).astype(np.float64)
    busiest = ascending[..., -1]
    ranks = 2 * np.arange(1, experts + 1, dtype=np.int64) - experts - 1

    empty = n == 0
    total = np.where(empty, 1, n).astype(np.float64)
    cv_squared = (above_mean**2).sum(axis=-1) / experts / total**2
    values = {
        "hot_load_share": np.where(hot, c, 0).sum(axis=-1) / total,
        "topk_load_share": ascending[..., experts - top_k :].sum(axis=-1) / total,
        "hot_expert_share": hot.sum(axis=-1) / experts,
        "cold_expert_share": cold.sum(axis=-1) / experts,
        "load_entropy": _entropy(c, total),
        "utilization_cv": np.sqrt(cv_squared),
        "jain_index": 1.0 / (1.0 + cv_squared),
        "max_violation": (busiest * experts - n) / total,
        "gini": (ascending * ranks).sum(axis=-1) / (experts * total),
        "working_set": (c > 0).sum(axis=-1).astype(np.float64),
        "drop_rate": _drop_rate(dropped, n, total),
    }
    return {name: np.where(empty, np.nan, value) for name, value in values.items()}


def checked_counts(counts: ArrayLike, top_k: int) -> NDArray[np.int64]:
    """Counts as int64 [..., E], or an error that says what is wrong with them.

    Raises:
        InputError: As `count_metrics`.
    """
    c = np.asarray(counts)
    if c.ndim == 0 or c.shape[-1] == 0:
        raise InputError(
            "Counts need a last axis with one entry per expert.", why=f"Their shape is {c.shape}."
        )
    experts = c.shape[-1]
    if experts > MAX_EXPERTS:
        raise InputError(f"Counts are for {experts} experts; at most {MAX_EXPERTS} are possible.")
    if not 1 <= top_k <= experts:
        raise InputError(
            f"top_k is {top_k}, but a token selects between 1 and E = {experts} experts."
        )
    if c.dtype.kind not in "iu":
        raise InputError(
            f"Counts must be integers, not {c.dtype}.",
            next_step="Convert whole numbers with counts.astype(np.int64); "
            "leave out windows with missing values.",
        )
    if c.size and c.min() < 0:
        raise InputError("A count is negative.", why=f"The smallest is {c.min()}.")
    if c.size and (most := c.sum(axis=-1, dtype=np.float64).max()) > MAX_ASSIGNMENTS:
        raise InputError(
            "A window has too many assignments for exact arithmetic.",
            why=f"It has about {most:.3g}; the limit is 2^46.",
            next_step="Use shorter windows.",
        )
    return c.astype(np.int64)


def _entropy(c: NDArray[np.int64], total: NDArray[np.float64]) -> NDArray[np.float64]:
    experts = c.shape[-1]
    if experts == 1:
        return np.full(c.shape[:-1], np.nan)
    p = c / total[..., None]
    surprise = -p * np.log(np.where(c == 0, 1.0, p))
    # Rounding can lead past the bound that uniform load attains.
    entropy: NDArray[np.float64] = np.minimum(surprise.sum(axis=-1) / math.log(experts), 1.0)
    return entropy


def _drop_rate(
    dropped: ArrayLike | None, n: NDArray[np.int64], total: NDArray[np.float64]
) -> NDArray[np.float64]:
    if dropped is None:
        return np.full(n.shape, np.nan)
    drops = np.asarray(dropped)
    if drops.shape != n.shape or drops.dtype.kind not in "iu":
        raise InputError(
            "Dropped assignments need one integer per window and layer.",
            why=f"They are {drops.dtype} {drops.shape}, the windows {n.shape}.",
        )
    known = (
        drops != DROPS_UNKNOWN if drops.dtype == np.uint64 else np.full(n.shape, fill_value=True)
    )
    number = np.where(known, drops, 0).astype(np.int64)
    if (number < 0).any() or (number > n).any():
        raise InputError(
            "Dropped assignments must lie between 0 and the assignments counted.",
            why="Counts hold what the router selected, before expert capacity dropped any.",
        )
    return np.where(known, number / total, np.nan)
