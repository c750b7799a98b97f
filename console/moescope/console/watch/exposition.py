"""Values of this process in Prometheus's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from moescope.core.self_metrics import SELF_METRICS, MetricKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from moescope.core.self_metrics import SelfMetric, SelfMetrics


class SelfMetricsCollector(Collector):
    """What one component has reported, and 0 for its counters that have not moved yet.

    A counter that first appears with its first increment has no rate for it: an alert would miss
    the one failure that it waits for.
    """

    def __init__(self, metrics: SelfMetrics, component: str) -> None:
        self._metrics = metrics
        self._unmoved: dict[tuple[SelfMetric, tuple[str, ...]], float] = {
            (metric, ()): 0.0
            for metric in SELF_METRICS
            if metric.component == component
            and metric.kind is MetricKind.COUNTER
            and not metric.labels
        }

    def collect(self) -> Iterator[Metric]:
        """One family per metric that has values."""
        values = dict(self._unmoved)
        values |= {(metric, labels): value for metric, labels, value in self._metrics.samples()}
        families: dict[str, Metric] = {}
        for (metric, labels), value in sorted(values.items(), key=lambda item: item[0][0].name):
            family = families.setdefault(metric.name, _family(metric))
            family.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
        yield from families.values()


class Exposition:
    """Renders the metrics of a component and of its process, as the scraper asks for them."""

    def __init__(self, metrics: SelfMetrics, component: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(SelfMetricsCollector(metrics, component))
        ProcessCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Body and content type for an `Accept` header."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def _family(metric: SelfMetric) -> Metric:
    if metric.kind is MetricKind.COUNTER:
        return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
