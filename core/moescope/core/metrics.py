"""The metric registry: names, formulas, units, bad sides, bounds and versions.

Declarations only. The arithmetic is in `moescope.processors.metrics`; the columns of the
`windows` table, the histograms, the thresholds and the documentation follow from here.

Symbols: a window at a layer has counts c_e of E experts, n = Σ c_e assignments (tokens × k),
mean m = n / E and shares p = c / n. S_t is the set of a request's k experts at position t.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from moescope.core import metric_bounds as bounds_of
from moescope.core.metric_types import (
    Family,
    HistogramSpec,
    Metric,
    Needs,
    Reference,
    Scale,
    Side,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BY_NAME",
    "COUNT_METRICS",
    "DIVERGENCES",
    "DROPS_UNKNOWN",
    "FAMILIES",
    "HISTOGRAM_METRICS",
    "JUDGED_METRICS",
    "METRICS",
    "METRIC_NAMES",
    "Family",
    "HistogramSpec",
    "Metric",
    "Needs",
    "Reference",
    "Scale",
    "Side",
]

DROPS_UNKNOWN = 2**64 - 1
"""Stands for "the producer does not tell" in uint64 counts of dropped assignments."""

_SHARE_OF_LOAD = "share of assignments"
_SHARE_OF_EXPERTS = "share of experts"
_BOUNDS = HistogramSpec()

_LOAD_METRICS = (
    Metric(
        name="hot_load_share",
        title="Hot load share",
        formula="Σ_{c_e > 2m} c_e / n",
        unit=_SHARE_OF_LOAD,
        side=Side.HIGH,
        version=1,
        needs=Needs.COUNTS,
        bounds=bounds_of.hot_load_share,
        summary="Share of the load on experts with more than twice the mean load",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.LOAD,
    ),
    Metric(
        name="topk_load_share",
        title="Top-k load share",
        formula="Σ of the k largest c_e / n",
        unit=_SHARE_OF_LOAD,
        side=Side.HIGH,
        version=1,
        needs=Needs.COUNTS,
        bounds=bounds_of.topk_load_share,
        summary="Share of the load on the k busiest experts",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.LOAD,
    ),
    Metric(
        name="hot_expert_share",
        title="Hot expert share",
        formula="|{e: c_e > 2m}| / E",
        unit=_SHARE_OF_EXPERTS,
        side=Side.NONE,
        version=1,
        needs=Needs.COUNTS,
        bounds=bounds_of.hot_expert_share,
        summary="Share of experts with more than twice the mean load; descriptive only",
        histogram=_BOUNDS,
        alerts=False,
    ),
    Metric(
        name="cold_expert_share",
        title="Cold expert share",
        formula="|{e: c_e = 0 or c_e < m/10}| / E",
        unit=_SHARE_OF_EXPERTS,
        side=Side.HIGH,
        version=1,
        needs=Needs.COUNTS,
        bounds=bounds_of.cold_expert_share,
        summary="Share of experts that are unused or hold less than a tenth of the mean load",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.LOAD,
    ),
    Metric(
        name="load_entropy",
        title="Load entropy",
        formula="−Σ p_e ln p_e / ln E",
        unit="1, relative to uniform load",
        side=Side.LOW,
        version=1,
        needs=Needs.COUNTS,
        bounds=bounds_of.load_entropy,
        summary="Evenness of the load: 1 when every expert holds the same",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.LOAD,
    ),
    Metric(
        name="utilization_cv",
        title="Coefficient of variation",
        formula="std(c) / m, population standard deviation",
        unit="1, relative to the mean load",
        side=Side.HIGH,
        version=1,
        needs=Needs.COUNTS,
        bounds=bounds_of.utilization_cv,
        summary="Spread of the experts' loads around their mean",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.LOAD,
    ),
    Metric(
        name="jain_index",
        title="Jain's fairness index",
        formula="1 / (1 + cv²) = n² / (E Σ c_e²)",
        unit="1, as a share of equally used experts",
        side=Side.LOW,
        version=1,
        needs=Needs.COUNTS,
        bounds=bounds_of.jain_index,
        summary="As if this share of the experts were used equally and the rest not at all",
        histogram=_BOUNDS,
        alerts=False,
    ),
    Metric(
        name="max_violation",
        title="Maximum violation",
        formula="max(c) / m − 1",
        unit="1, relative to the mean load",
        side=Side.HIGH,
        version=1,
        needs=Needs.COUNTS,
        bounds=bounds_of.max_violation,
        summary="How far the busiest expert is above the mean load",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.LOAD,
    ),
    Metric(
        name="gini",
        title="Gini coefficient",
        formula="Σ_j (2j − E − 1) c_(j) / (E n), c_(1) ≤ … ≤ c_(E)",
        unit="1",
        side=Side.HIGH,
        version=1,
        needs=Needs.COUNTS,
        bounds=bounds_of.gini,
        summary="Inequality of the experts' loads: 0 when all hold the same",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.LOAD,
    ),
    Metric(
        name="working_set",
        title="Working set",
        formula="|{e: c_e > 0}|",
        unit="experts",
        side=Side.NONE,
        version=1,
        needs=Needs.COUNTS,
        bounds=bounds_of.working_set,
        summary="Number of experts that the window touched",
        histogram=_BOUNDS,
        alerts=False,
    ),
    Metric(
        name="drop_rate",
        title="Drop rate",
        formula="assignments dropped by expert capacity / n",
        unit=_SHARE_OF_LOAD,
        side=Side.HIGH,
        version=1,
        needs=Needs.DROPS,
        bounds=bounds_of.drop_rate,
        summary="Share of assignments that expert capacity dropped",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.LOAD,
    ),
)

# Divergences of healthy windows span orders of magnitude, from their noise floor (∝ 1/tokens)
# to a full collapse, so both kinds have bins of equal ratio: 24 octaves, 3/8 of an octave each.
_JS_HISTOGRAM = HistogramSpec(scale=Scale.LOG, low=2.0**-24, high=1.0)
_KL_HISTOGRAM = HistogramSpec(scale=Scale.LOG, low=2.0**-20, high=16.0)

_REFERENCE_WORDS = {
    Reference.UNIFORM: "uniform load",
    Reference.TRAILING: "the trailing reference",
}


def _divergences(reference: Reference) -> tuple[Metric, ...]:
    uniform = reference is Reference.UNIFORM
    against = _REFERENCE_WORDS[reference]
    return (
        Metric(
            name=f"js_{reference}",
            title=f"Jensen–Shannon divergence from {against}",
            formula="½ Σ p̃ log₂(p̃/a) + ½ Σ q log₂(q/a), a = (p̃ + q)/2",
            unit="bits",
            side=Side.HIGH,
            version=1,
            needs=Needs.REFERENCE,
            bounds=bounds_of.js_uniform if uniform else bounds_of.js_any,
            summary=f"Distance of the load from {against}, bounded and symmetric",
            histogram=_JS_HISTOGRAM,
            alerts=True,
            family=Family.LOAD,
            reference=reference,
            noise_floor=f"js_{reference}_floor",
        ),
        Metric(
            name=f"kl_{reference}",
            title=f"Kullback–Leibler divergence from {against}",
            formula="Σ p̃ ln(p̃/q)",
            unit="nats",
            side=Side.HIGH,
            version=1,
            needs=Needs.REFERENCE,
            bounds=bounds_of.kl_uniform if uniform else bounds_of.kl_any,
            summary=f"Information gained over {against}",
            histogram=_KL_HISTOGRAM,
            alerts=False,
            reference=reference,
            noise_floor=f"kl_{reference}_floor",
        ),
    )


def _noise_floor(divergence: Metric) -> Metric:
    return Metric(
        name=f"{divergence.name}_floor",
        title=f"Noise floor of {divergence.name}",
        formula=f"E[{divergence.name}] over independent tokens drawn from q",
        unit=divergence.unit,
        side=Side.NONE,
        version=1,
        needs=Needs.REFERENCE,
        bounds=divergence.bounds,
        summary=f"What {divergence.name} shows by chance alone at this number of tokens",
        histogram=None,
        alerts=False,
        reference=divergence.reference,
    )


_DIVERGENCES = tuple(
    metric
    for reference in (Reference.UNIFORM, Reference.TRAILING)
    for metric in _divergences(reference)
)

_SHIFTS = (
    Metric(
        name="routing_shift",
        title="Routing shift",
        formula="js(p, q), q = Σ_s t_s q_s with t_s the window's own share of tokens of scene s",
        unit="bits",
        side=Side.HIGH,
        version=1,
        needs=Needs.REFERENCE,
        bounds=bounds_of.js_any,
        summary="Distance of the load from the baseline's, given the window's own traffic mix",
        histogram=_JS_HISTOGRAM,
        alerts=True,
        family=Family.ROUTING,
        reference=Reference.BASELINE,
    ),
    Metric(
        name="mix_shift",
        title="Mix shift",
        formula="js(Σ_s t_s q_s, Σ_s b_s q_s), b_s the baseline's share of tokens of scene s",
        unit="bits",
        side=Side.HIGH,
        version=1,
        needs=Needs.REFERENCE,
        bounds=bounds_of.js_any,
        summary="How far the traffic mix alone moves the load from the baseline's; informs only",
        histogram=_JS_HISTOGRAM,
        alerts=False,
        reference=Reference.BASELINE,
    ),
)

_ROUTER_METRICS = (
    Metric(
        name="router_entropy",
        title="Router entropy",
        formula="mean over rows of the entropy of the router's probabilities before top-k / ln E",
        unit="1, relative to undecided",
        side=Side.LOW,
        version=1,
        needs=Needs.SCORES,
        bounds=bounds_of.share,
        summary="How undecided the router was: 1 when every expert was as likely",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.ROUTER,
    ),
    Metric(
        name="router_margin",
        title="Router margin",
        formula="mean over rows of the selection score's gap at the k-th place",
        unit="selection score",
        side=Side.LOW,
        version=1,
        needs=Needs.SCORES,
        bounds=bounds_of.router_margin,
        summary="How clearly the k-th expert was preferred over the next one",
        histogram=HistogramSpec(scale=Scale.LOG, low=2.0**-16, high=4.0),
        alerts=True,
        family=Family.ROUTER,
    ),
    Metric(
        name="topk_overlap",
        title="Top-k overlap",
        formula="mean over consecutive rows of |S_t ∩ S_{t−1}| / k",
        unit="share of experts kept",
        side=Side.BOTH,
        version=1,
        needs=Needs.PAIRS,
        bounds=bounds_of.topk_overlap,
        summary="Share of its experts that a token has in common with the token before it",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.ROUTER,
    ),
    Metric(
        name="overlap_chance",
        title="Overlap by chance",
        formula="k Σ p_e²",
        unit="share of experts kept",
        side=Side.NONE,
        version=1,
        needs=Needs.COUNTS,
        bounds=bounds_of.overlap_chance,
        summary="What top-k overlap would be if tokens chose independently with this load",
        histogram=_BOUNDS,
        alerts=False,
    ),
    Metric(
        name="top1_switches",
        title="Top-1 switches",
        formula="100 × changes of the first-ranked expert / consecutive rows",
        unit="per 100 pairs",
        side=Side.BOTH,
        version=1,
        needs=Needs.RANKS,
        bounds=bounds_of.top1_switches,
        summary="How often the first-ranked expert changes from token to token",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.ROUTER,
    ),
)

_REPETITION_METRICS = (
    Metric(
        name="positional_agreement",
        title="Positional agreement",
        formula="Σ_z (Σ_e c_ze² − k R_z) / Σ_z k R_z (R_z − 1), R_z requests at sampled position z",
        unit="share of experts in common",
        side=Side.HIGH,
        version=1,
        needs=Needs.POSITIONS,
        bounds=bounds_of.topk_overlap,
        summary="Share of experts that different requests have in common at the same position",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.REPETITION,
    ),
    Metric(
        name="request_similarity",
        title="Request similarity",
        formula="(‖Σw‖² − Σ‖w‖²) / (R (R − 1)), w = c / √((‖c‖² − kT) T / (T − 1))",
        unit="1",
        side=Side.HIGH,
        version=1,
        needs=Needs.REQUESTS,
        bounds=bounds_of.request_similarity,
        summary="How alike the loads of concurrent requests are, their own noise removed",
        histogram=HistogramSpec(low=-0.5, high=1.5),
        alerts=True,
        family=Family.REPETITION,
    ),
)

_EXECUTION_METRICS = (
    Metric(
        name="rank_imbalance",
        title="Rank imbalance",
        formula="max(r) / mean(r), r_j = Σ c_e over the experts e that rank j holds",
        unit="1, relative to the mean load of a rank",
        side=Side.HIGH,
        version=1,
        needs=Needs.PLACEMENT,
        bounds=bounds_of.rank_imbalance,
        summary="Load of the busiest expert-parallel rank in multiples of the mean",
        histogram=HistogramSpec(scale=Scale.LOG, low=1.0, high=16.0),
        alerts=True,
        family=Family.LOAD,
    ),
    Metric(
        name="pass_imbalance",
        title="Pass imbalance",
        formula="mean over passes of E max(c) / Σ c, c_e the rows of a pass for expert e",
        unit="1, relative to the mean rows of an expert",
        side=Side.HIGH,
        version=1,
        needs=Needs.PASSES,
        bounds=bounds_of.pass_imbalance,
        summary="Rows of a forward pass for its busiest expert in multiples of the mean",
        histogram=_BOUNDS,
        alerts=True,
        family=Family.LOAD,
    ),
    Metric(
        name="pass_imbalance_max",
        title="Largest pass imbalance",
        formula="max over passes of E max(c) / Σ c",
        unit="1, relative to the mean rows of an expert",
        side=Side.HIGH,
        version=1,
        needs=Needs.PASSES,
        bounds=bounds_of.pass_imbalance,
        summary="Pass imbalance of the window's most uneven forward pass; informs only",
        histogram=_BOUNDS,
        alerts=False,
    ),
)

METRICS: tuple[Metric, ...] = (
    *_LOAD_METRICS,
    *_DIVERGENCES,
    *_SHIFTS,
    *_ROUTER_METRICS,
    *_REPETITION_METRICS,
    *_EXECUTION_METRICS,
    *(_noise_floor(divergence) for divergence in _DIVERGENCES),
)
"""Every stored metric, in column order; those without a histogram come last."""

BY_NAME: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in METRICS})
"""The registry by metric name."""

METRIC_NAMES: tuple[str, ...] = tuple(BY_NAME)
"""Column names in column order."""

COUNT_METRICS: tuple[Metric, ...] = _LOAD_METRICS
"""Those that need no reference."""

DIVERGENCES: tuple[Metric, ...] = _DIVERGENCES
"""Those that are measured against a reference, without their noise floors."""

HISTOGRAM_METRICS: tuple[Metric, ...] = tuple(m for m in METRICS if m.histogram is not None)
"""Those that have a histogram: a prefix of `METRICS`."""

JUDGED_METRICS: tuple[Metric, ...] = tuple(m for m in METRICS if m.side is not Side.NONE)
"""Those that get thresholds and levels."""

FAMILIES: Mapping[Family, tuple[Metric, ...]] = MappingProxyType(
    {family: tuple(metric for metric in METRICS if metric.family is family) for family in Family}
)
"""The metrics that alert, by family."""
