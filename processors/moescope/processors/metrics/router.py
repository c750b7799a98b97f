"""What the router thought, and how routing moves along a request: from additive sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.errors import InputError
from moescope.core.router_sums import FIXED_POINT, ROUTER_SUMS, RouterSum
from moescope.processors.metrics.counts import checked_counts

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from moescope.core.router_sums import LagSums

PER_PAIRS = 100.0
"""Switches of the first-ranked expert are counted per that many pairs."""


def router_metrics(
    router: NDArray[np.int64], counts: ArrayLike, top_k: int
) -> dict[str, NDArray[np.float64]]:
    """Router entropy and margin, overlap of consecutive rows with its chance, and switches.

    Args:
        router: int64 [..., L, ROUTER_SUMS] in the columns of `RouterSum`.
        counts: Integers [..., L, E], assignments of the same windows.
        top_k: k.

    Returns:
        Metric name → float64 [..., L]; NaN where nothing was there to average.

    Raises:
        InputError: As `count_metrics`, or the sums have another shape than the counts.
    """
    c = checked_counts(counts, top_k)
    if router.shape != (*c.shape[:-1], ROUTER_SUMS):
        raise InputError(
            f"Router sums need {ROUTER_SUMS} columns for each window and layer.",
            why=f"Their shape is {router.shape}, that of the counts {c.shape}.",
        )
    return {**averages_of_sums(router, top_k), "overlap_chance": overlap_chance(c, top_k)}


def averages_of_sums(router: NDArray[np.int64], top_k: int) -> dict[str, NDArray[np.float64]]:
    """As `router_metrics`, without what follows from the counts alone.

    Args:
        router: int64 [..., ROUTER_SUMS].
        top_k: k.
    """

    def average(total: RouterSum, rows: RouterSum, unit: float) -> NDArray[np.float64]:
        number = router[..., rows]
        known = number > 0
        mean = router[..., total] / (unit * np.where(known, number, 1))
        return np.where(known, mean, np.nan)

    return {
        "router_entropy": average(RouterSum.ENTROPY, RouterSum.ENTROPY_ROWS, FIXED_POINT),
        "router_margin": average(RouterSum.MARGIN, RouterSum.MARGIN_ROWS, FIXED_POINT),
        "topk_overlap": average(RouterSum.OVERLAP, RouterSum.PAIRS, top_k),
        "top1_switches": average(RouterSum.TOP1_SWITCHES, RouterSum.RANKED_PAIRS, 1 / PER_PAIRS),
    }


def overlap_chance(counts: ArrayLike, top_k: int) -> NDArray[np.float64]:
    """Overlap of two tokens that choose independently with this load: k Σ p².

    Args:
        counts: Integers [..., E].
        top_k: k.

    Returns:
        float64 [...]; NaN for windows without assignments.

    Raises:
        InputError: As `count_metrics`.
    """
    c = checked_counts(counts, top_k)
    n = c.sum(axis=-1, keepdims=True)
    shares = c / np.where(n == 0, 1, n)
    return np.where(n[..., 0] == 0, np.nan, top_k * (shares**2).sum(axis=-1))


def lag_overlap(sums: LagSums, top_k: int) -> NDArray[np.float64]:
    """Mean overlap of a token with the one d places before it, for lags 1 … 64.

    Args:
        sums: Of sampled requests.
        top_k: k.

    Returns:
        float64 [L, LAGS], share of experts in common; NaN where no pair has this lag.
    """
    known = sums.pairs > 0
    return np.where(known, sums.overlap / (top_k * np.where(known, sums.pairs, 1)), np.nan)
