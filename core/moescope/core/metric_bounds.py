"""The values that metrics can attain, per number of experts E and top-k.

All bounds follow from one fact: a token selects k *distinct* experts, so an expert's share of
the load is at most 1/k. Most metrics are convex in the shares, so they are largest where all
tokens select the same k experts. Where a bound is only approached as a window grows (the
smoothed divergences), the bound is the limit.
"""

from __future__ import annotations

import math

Bounds = tuple[float, float]


def hot_load_share(experts: int, top_k: int) -> Bounds:
    """0 … 1, but 0 alone where 1/k cannot exceed twice the mean share 1/E."""
    return 0.0, 1.0 if experts > 2 * top_k else 0.0


def hot_expert_share(experts: int, top_k: int) -> Bounds:
    """Fewer than half of the experts can each hold more than twice the mean."""
    if experts <= 2 * top_k:
        return 0.0, 0.0
    return 0.0, ((experts - 1) // 2) / experts


def topk_load_share(experts: int, top_k: int) -> Bounds:
    """The k busiest hold at least their fair share k/E and at most everything."""
    return top_k / experts, 1.0


def cold_expert_share(experts: int, top_k: int) -> Bounds:
    """All but the fewest experts that can hold the load which cold ones leave.

    `w` warm experts hold at most w/k; the E − w cold ones less than 1/(10 E) each. For top-k
    up to about ten this needs w = k; beyond, cold experts together can replace warm ones.
    """
    warm = 9 * experts * top_k // (10 * experts - top_k) + 1
    return 0.0, (experts - min(warm, top_k)) / experts


def load_entropy(experts: int, top_k: int) -> Bounds:
    """Ln k / ln E … 1; undefined (both NaN) for a single expert."""
    if experts == 1:
        return math.nan, math.nan
    return math.log(top_k) / math.log(experts), 1.0


def utilization_cv(experts: int, top_k: int) -> Bounds:
    """0 … √(E/k − 1)."""
    return 0.0, math.sqrt(experts / top_k - 1.0)


def jain_index(experts: int, top_k: int) -> Bounds:
    """k/E … 1."""
    return top_k / experts, 1.0


def max_violation(experts: int, top_k: int) -> Bounds:
    """0 … E/k − 1."""
    return 0.0, experts / top_k - 1.0


def gini(experts: int, top_k: int) -> Bounds:
    """0 … 1 − k/E."""
    return 0.0, 1.0 - top_k / experts


def working_set(experts: int, top_k: int) -> Bounds:
    """A single token touches k experts, and there are E."""
    return float(top_k), float(experts)


def drop_rate(experts: int, top_k: int) -> Bounds:
    """0 … 1, whatever E and k are."""
    del experts, top_k
    return 0.0, 1.0


def kl_uniform(experts: int, top_k: int) -> Bounds:
    """0 … ln(E/k)."""
    return 0.0, math.log(experts / top_k)


def kl_any(experts: int, top_k: int) -> Bounds:
    """0 … ∞: an expert that the reference almost never used may take 1/k of the load."""
    return 0.0, 0.0 if experts == top_k else math.inf


def js_uniform(experts: int, top_k: int) -> Bounds:
    """0 … the divergence between k equal shares and E equal shares."""
    share = top_k / experts
    most = 0.5 * (
        math.log2(2.0 / (1.0 + share)) + share * math.log2(2.0 * share / (1.0 + share)) + 1 - share
    )
    return 0.0, most


def js_any(experts: int, top_k: int) -> Bounds:
    """0 … 1, or less where two sets of k of E experts must overlap (2k > E)."""
    return 0.0, min(1.0, (experts - top_k) / top_k)


def share(experts: int, top_k: int) -> Bounds:
    """0 … 1, whatever E and k."""
    return 0.0, 1.0


def router_margin(experts: int, top_k: int) -> Bounds:
    """A gap is not negative; scores may be logits or carry a bias, so it has no upper bound."""
    return 0.0, math.inf


def topk_overlap(experts: int, top_k: int) -> Bounds:
    """Two sets of k among E experts share at least 2k − E."""
    return max(0, 2 * top_k - experts) / top_k, 1.0


def overlap_chance(experts: int, top_k: int) -> Bounds:
    """Of k Σ p²: it lies between uniform load and all tokens on the same k experts."""
    return top_k / experts, 1.0


def top1_switches(experts: int, top_k: int) -> Bounds:
    """Per 100 pairs; with one expert there is nothing to switch to."""
    return 0.0, 100.0 if experts > 1 else 0.0


def pass_imbalance(experts: int, top_k: int) -> Bounds:
    """1 … E/k: an expert holds at least the mean load, and at most one row of each token."""
    return 1.0, experts / top_k


def rank_imbalance(experts: int, top_k: int) -> Bounds:
    """1 … E: there are at most E ranks, and one of them may hold everything."""
    return 1.0, float(experts)


def request_similarity(experts: int, top_k: int) -> Bounds:
    """The removed noise is an estimate, so the value is not capped at 1."""
    return -math.inf, math.inf
