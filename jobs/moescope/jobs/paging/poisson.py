"""Exact upper bound of a Poisson rate."""

from __future__ import annotations

import math

CONFIDENCE = 0.95
_RELATIVE_PRECISION = 1e-12


def poisson_rate_bound(events: int, span: float, confidence: float = CONFIDENCE) -> float:
    """One-sided upper bound of a rate after `events` events in a span.

    The bound is the rate at which so few events, or fewer, have probability 1 − confidence:
    half the `confidence` quantile of χ² with 2 · (events + 1) degrees of freedom, over the span
    (Garwood 1936).

    Args:
        events: Events seen; at least 0.
        span: Observed time; positive. The bound is per unit of it.
        confidence: Between 0 and 1.

    Raises:
        ValueError: An argument is out of range.
    """
    if events < 0 or not span > 0 or not 0 < confidence < 1:
        raise ValueError("events must be at least 0, span positive, confidence between 0 and 1")
    tail = 1 - confidence
    low, high = 0.0, float(events + 1)
    while _at_most(events, high) > tail:
        low, high = high, 2 * high
    while high - low > _RELATIVE_PRECISION * high:
        middle = (low + high) / 2
        if _at_most(events, middle) > tail:
            low = middle
        else:
            high = middle
    return high / span


def _at_most(events: int, mean: float) -> float:
    """P(X ≤ events) of a Poisson variable; terms summed from their logarithms."""
    log_mean = math.log(mean)
    return math.fsum(
        math.exp(count * log_mean - mean - math.lgamma(count + 1)) for count in range(events + 1)
    )
