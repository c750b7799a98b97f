"""Every metric of one window in plain Python, written from the formulas and nothing else.

Exact fractions where the formula is rational; `math.log` and `math.fsum` where it is not.
Shares no code with moescope.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def count_metrics(counts: Sequence[int], top_k: int) -> dict[str, float | None]:
    """Load metrics of one window; None where undefined."""
    experts = len(counts)
    n = sum(counts)
    if n == 0:
        return dict.fromkeys(
            (
                "hot_load_share", "topk_load_share", "hot_expert_share", "cold_expert_share",
                "load_entropy", "utilization_cv", "jain_index", "max_violation", "gini",
                "working_set",
            )
        )  # fmt: skip
    m = Fraction(n, experts)
    shares = [c / n for c in counts if c > 0]
    variance = sum((c - m) ** 2 for c in counts) / experts
    ascending = sorted(counts)
    return {
        "hot_load_share": float(Fraction(sum(c for c in counts if c > 2 * m), n)),
        "topk_load_share": float(Fraction(sum(ascending[::-1][:top_k]), n)),
        "hot_expert_share": float(Fraction(sum(c > 2 * m for c in counts), experts)),
        "cold_expert_share": float(Fraction(sum(c == 0 or c < m / 10 for c in counts), experts)),
        "load_entropy": None
        if experts == 1
        else -math.fsum(p * math.log(p) for p in shares) / math.log(experts),
        "utilization_cv": math.sqrt(variance) / float(m),
        "jain_index": float(1 / (1 + variance / m**2)),
        "max_violation": float(max(counts) / m - 1),
        "gini": float(
            Fraction(
                sum((2 * j - experts - 1) * c for j, c in enumerate(ascending, start=1)),
                experts * n,
            )
        ),
        "working_set": float(sum(c > 0 for c in counts)),
    }


def smoothed(reference_counts: Sequence[int]) -> list[Fraction]:
    """Smoothed reference q = (c_ref + ½) / (n_ref + E/2)."""
    total = sum(reference_counts) + Fraction(len(reference_counts), 2)
    return [(c + Fraction(1, 2)) / total for c in reference_counts]


def divergence(counts: Sequence[int], q: Sequence[Fraction]) -> tuple[float, float]:
    """(Jensen-Shannon in bits, Kullback-Leibler in nats) of the smoothed window from q."""
    experts, n = len(counts), sum(counts)
    p = [
        (c + Fraction(experts, 2) * share) / (n + Fraction(experts, 2))
        for c, share in zip(counts, q, strict=True)
    ]
    average = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (
        (_kl(p, average) + _kl(q, average)) / 2 / math.log(2),
        _kl(p, q),
    )


def _kl(p: Sequence[Fraction], q: Sequence[Fraction]) -> float:
    return math.fsum(float(a) * _log(a / b) for a, b in zip(p, q, strict=True))


def _log(ratio: Fraction) -> float:
    """Natural logarithm of a fraction, from its exact distance to 1 where that is small."""
    return math.log1p(float(ratio - 1)) if abs(ratio - 1) < Fraction(1, 2) else math.log(ratio)


def mix(scenes: Mapping[str, Sequence[int]], tokens: Mapping[str, int]) -> list[Fraction] | None:
    """Scene mix of one layer; None where a scene with tokens is not among the references."""
    present = {scene: number for scene, number in tokens.items() if number}
    if not present or not set(present) <= set(scenes):
        return None
    total = sum(present.values())
    parts = {scene: smoothed(scenes[scene]) for scene in present}
    experts = len(next(iter(parts.values())))
    return [
        sum(
            (Fraction(number, total) * parts[scene][e] for scene, number in present.items()),
            start=Fraction(0),
        )
        for e in range(experts)
    ]


def js(p: Sequence[Fraction], q: Sequence[Fraction]) -> float:
    """Jensen-Shannon divergence of two distributions, in bits."""
    average = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (_kl(p, average) + _kl(q, average)) / 2 / math.log(2)


def agreement(requests: Mapping[int, Sequence[set[int]]], top_k: int) -> float | None:
    """Mean of |S ∩ S'| / k over all pairs of requests at the same position, pair by pair."""
    shares = [
        Fraction(len(one & other), top_k)
        for sets in requests.values()
        for one, other in combinations(sets, 2)
    ]
    return float(sum(shares) / len(shares)) if shares else None


def similarity(panes: Sequence[Sequence[Sequence[int]]]) -> float | None:
    """Mean of w·w' over all pairs of the vectors of each pane, vector by vector."""
    products = [
        sum(a * b for a, b in zip(one, other, strict=True))
        for pane in panes
        for one, other in combinations(pane, 2)
    ]
    return float(Fraction(sum(products), len(products))) if products else None
