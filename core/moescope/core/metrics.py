"""The metric registry: names, formulas, units, bad sides, bounds and versions.

Declarations only. The arithmetic is in `moescope.processors.metrics`; the columns of the
`windows` table, the histograms, the thresholds and the documentation follow from here.

Symbols: a window at a layer has counts c_e of E experts, n = Σ c_e assignments (tokens × k),
mean m = n / E and shares p = c / n.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from moescope.core import metric_bounds as bounds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


DROPS_UNKNOWN = 2**64 - 1
"""Stands for "the producer does not tell" in uint64 counts of dropped assignments."""


class Side(StrEnum):
    """Where a metric's bad values are; `none` marks context that is never judged."""

    HIGH = "high"
    LOW = "low"
    BOTH = "both"
    NONE = "none"


class Needs(StrEnum):
    """What a metric is computed from; where that is missing, the metric is null."""

    COUNTS = "counts"
    DROPS = "drops"
    REFERENCE = "reference"


class Reference(StrEnum):
    """The expert distribution that a window's divergence is measured against."""

    UNIFORM = "uniform"
    TRAILING = "trailing"


class Scale(StrEnum):
    """How a histogram's bins divide its range."""

    LINEAR = "linear"
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSpec:
    """The range of a metric's histogram.

    Attributes:
        scale: Bins of equal width or of equal ratio.
        low, high: The range; None takes the metric's attainable bound for E and k.
    """

    scale: Scale = Scale.LINEAR
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One stored metric.

    Attributes:
        name: Column of the `windows` table, and key everywhere else.
        title: For people.
        formula: In the symbols of this module.
        unit: What a value counts or is a share of.
        side: Where bad values are. Any side but `none` gets thresholds and levels.
        version: Raised whenever a formula change makes old and new values incomparable.
        needs: What it is computed from.
        bounds: (E, k) → the attainable (low, high); NaN where the metric is undefined.
        summary: One line, what it tells.
        histogram: None for context that has no histogram.
        alerts: Whether its exceedances count towards alerts. A metric that has a side but does
            not alert carries the same information as one that does.
        reference: What a divergence, or its noise floor, is measured against.
        noise_floor: The column with the value that chance alone gives.
    """

    name: str
    title: str
    formula: str
    unit: str
    side: Side
    version: int
    needs: Needs
    bounds: Callable[[int, int], tuple[float, float]]
    summary: str
    histogram: HistogramSpec | None
    alerts: bool
    reference: Reference | None = None
    noise_floor: str | None = None

    @property
    def sql_type(self) -> str:
        """DuckDB type of the column; null where the metric is undefined."""
        return "DOUBLE"

    @property
    def description(self) -> str:
        """One line for column comments and table references."""
        bad = {
            Side.HIGH: "; high is bad",
            Side.LOW: "; low is bad",
            Side.BOTH: "; both ends are bad",
            Side.NONE: "",
        }[self.side]
        return f"{self.summary} ({self.unit}{bad})"


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


_DIVERGENCES = tuple(metric for reference in Reference for metric in _divergences(reference))

METRICS: tuple[Metric, ...] = (
    *_LOAD_METRICS,
    *_DIVERGENCES,
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
