"""Distance of a window's load from a reference distribution, both smoothed.

Smoothing keeps both divergences finite where an expert is unused: half an assignment per expert
is added to the reference (Jeffreys' prior), and E/2 assignments spread like the reference are
added to the window.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moescope.core.errors import InputError
from moescope.processors.metrics.counts import checked_counts

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

NEAR = 0.5
"""Below this |p − q| / (p + q), ln(1 ± x) is more precise than ln(p/a) and ln(q/a)."""
_SUM_TOLERANCE = 1e-9


class Divergence(NamedTuple):
    """Both divergences of the same windows, float64 [...].

    Attributes:
        js: Jensen–Shannon, base 2: 0 … 1.
        kl: Kullback–Leibler from the reference, nats: 0 … ∞.
    """

    js: NDArray[np.float64]
    kl: NDArray[np.float64]


def uniform_reference(experts: int) -> NDArray[np.float64]:
    """Q = 1/E, float64 [E]."""
    return np.full(experts, 1.0 / experts)


def smoothed_reference(counts: ArrayLike) -> NDArray[np.float64]:
    """Reference distribution from counts: q = (c + ½) / (n + E/2).

    Args:
        counts: Integers [..., E].

    Returns:
        float64 [..., E], all positive, sums to 1. NaN where there are no assignments: nothing
        is known then, which is another thing than uniform load.

    Raises:
        InputError: As `count_metrics`.
    """
    c = checked_counts(counts, 1)
    n = c.sum(axis=-1, keepdims=True)
    q = (c + 0.5) / (n + 0.5 * c.shape[-1])
    return np.where(n == 0, np.nan, q)


def divergence(counts: ArrayLike, reference: ArrayLike) -> Divergence:
    """Divergences of windows from a reference.

    The window is smoothed with the reference, p̃ = (c + ½E·q) / (n + ½E); then
    kl = Σ p̃ ln(p̃/q) and js = ½ Σ p̃ log₂(p̃/a) + ½ Σ q log₂(q/a) with a = (p̃ + q)/2.

    Args:
        counts: Integers [..., E].
        reference: Broadcasts with `counts`. Integers are counts, which are smoothed
            (`smoothed_reference`); floats are q itself: positive, summing to 1 over the last
            axis, or NaN throughout where there is no reference.

    Returns:
        float64 [...] each; NaN for windows without assignments or without a reference.

    Raises:
        InputError: As `count_metrics`; or the reference is no distribution over the same E.
    """
    c = checked_counts(counts, 1)
    q = checked_reference(reference, c.shape[-1])
    experts = c.shape[-1]
    n = c.sum(axis=-1, keepdims=True)
    p = (c + 0.5 * experts * q) / (n + 0.5 * experts)
    js, kl = divergence_terms(p, q)
    empty = n[..., 0] == 0
    return Divergence(
        js=np.where(empty, np.nan, js.sum(axis=-1)), kl=np.where(empty, np.nan, kl.sum(axis=-1))
    )


def divergence_terms(
    p: NDArray[np.float64], q: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each expert's part of both divergences, in a form that loses no digits where p ≈ q.

    With a = (p + q)/2 and x = (p − q)/(p + q), the parts are
    js = a/2 · [(1 + x) log₂(1 + x) + (1 − x) log₂(1 − x)] and
    kl = p · [ln(1 + x) − ln(1 − x)] − (p − q), whose last term sums to zero over the experts and
    makes every part non-negative. Far from p ≈ q it is 1 ± x that loses digits, so the logarithms
    are taken of p/a and q/a.
    """
    a = 0.5 * (p + q)
    x = (p - q) / (p + q)
    near = np.abs(x) < NEAR
    above = np.where(near, np.log1p(np.where(near, x, 0.0)), np.log(p / a))
    below = np.where(near, np.log1p(np.where(near, -x, 0.0)), np.log(q / a))
    js = (0.5 / math.log(2.0)) * a * ((1.0 + x) * above + (1.0 - x) * below)
    kl = p * (above - below) - (p - q)
    return np.maximum(js, 0.0), np.maximum(kl, 0.0)


def checked_reference(reference: ArrayLike, experts: int) -> NDArray[np.float64]:
    """Reference distribution q, float64 [..., E].

    Raises:
        InputError: It is no distribution over E experts.
    """
    given: NDArray[Any] = np.asarray(reference)
    if given.ndim == 0 or given.shape[-1] != experts:
        raise InputError(
            f"The reference must have one entry for each of the {experts} experts.",
            why=f"Its shape is {given.shape}.",
        )
    if given.dtype.kind in "iu":
        return smoothed_reference(given)
    q = given.astype(np.float64)
    absent = np.isnan(q).all(axis=-1)
    proper = (q > 0).all(axis=-1) & (np.abs(q.sum(axis=-1) - 1.0) <= _SUM_TOLERANCE)
    if not (absent | proper).all():
        raise InputError(
            "The reference is no distribution: entries must be positive and sum to 1.",
            next_step="Pass integer counts instead, and they are smoothed.",
        )
    return q
