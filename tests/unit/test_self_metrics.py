from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import pytest

from moescope.core.errors import InternalError
from moescope.core.self_metrics import SELF_METRICS, MetricKind, SelfMetric, SelfMetrics

if TYPE_CHECKING:
    from pathlib import Path

NAME = re.compile(r"moescope_(agent|processor|store)(_[a-z]+)+")
FOREIGN_UNITS = {
    "us", "ms", "millis", "micros", "nanos", "minutes", "hours", "days", "kib", "mib", "gib",
    "kb", "mb", "percent", "bits",
}  # fmt: skip
SUFFIXES_OF_OTHER_KINDS = ("_count", "_sum", "_bucket", "_info", "_created")
FEW_VALUES = {"node", "partition", "domain", "reason", "state", "name"}
"""Bounded by the fleet that one process serves, or by a declaration in the code."""
LAG = "moescope_processor_lag_records"
RECORDS = "moescope_processor_records_total"

COMPONENTS = ("core", "producers", "processors", "storage", "jobs", "console")

every_metric = pytest.mark.parametrize("metric", SELF_METRICS, ids=lambda metric: metric.name)


@pytest.fixture(scope="module")
def sources(repository_root: Path) -> str:
    """All code but the tests."""
    return "".join(
        path.read_text(encoding="utf-8")
        for component in COMPONENTS
        for path in sorted((repository_root / component).rglob("*.py"))
    )


@every_metric
def test_names_follow_the_convention(metric: SelfMetric) -> None:
    """Who knows Prometheus's conventions can guess a metric's unit and kind from its name."""
    assert NAME.fullmatch(metric.name)
    words = set(metric.name.split("_"))
    assert words & FOREIGN_UNITS == set()
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert "total" not in metric.name.removesuffix("_total")
    assert not metric.name.endswith(SUFFIXES_OF_OTHER_KINDS)
    if "timestamp" in words:
        assert metric.name.endswith("_timestamp_seconds")


@every_metric
def test_labels_are_few_and_bounded(metric: SelfMetric) -> None:
    """A label is none that Prometheus sets itself, and has few values."""
    assert set(metric.labels) <= FEW_VALUES
    assert len(metric.labels) == len(set(metric.labels)) <= 1


@every_metric
def test_every_metric_is_reported(metric: SelfMetric, sources: str) -> None:
    """A rule over a metric that nobody reports never fires."""
    assert f'"{metric.name}"' in sources


@every_metric
def test_help_is_a_sentence(metric: SelfMetric) -> None:
    """The help text is what a person on call has."""
    assert re.fullmatch(r"[A-Z1].{8,}\.", metric.help)


def test_names_are_unique() -> None:
    """Two declarations of one name would make two families of one scrape."""
    names = [metric.name for metric in SELF_METRICS]
    assert sorted(set(names)) == sorted(names)


def test_values_are_kept_by_label() -> None:
    """Counters add up, gauges are replaced, and what was forgotten is gone."""
    metrics = SelfMetrics()
    metrics.add(RECORDS, 2, partition="a")
    metrics.add(RECORDS, partition="a")
    metrics.add(RECORDS, 5, partition="b")
    metrics.set(LAG, 9, partition="a")
    metrics.set(LAG, 4, partition="a")
    assert metrics.value(RECORDS, partition="a") == 3
    assert metrics.value(LAG, partition="a") == 4
    metrics.forget(LAG, partition="a")
    shown = [(metric.name, labels, value) for metric, labels, value in metrics.samples()]
    assert shown == [(RECORDS, ("a",), 3.0), (RECORDS, ("b",), 5.0)]
    assert metrics.value(LAG, partition="a") == 0


def test_mistakes_are_refused() -> None:
    """A misspelt name, a wrong kind and a missing label fail in tests, not in a dashboard."""
    metrics = SelfMetrics()
    with pytest.raises(InternalError):
        metrics.add("moescope_processor_record_total")
    with pytest.raises(InternalError):
        metrics.set(RECORDS, 1, partition="a")
    with pytest.raises(InternalError):
        metrics.add(RECORDS, 1)
    with pytest.raises(InternalError, match="grows"):
        metrics.add(RECORDS, -1, partition="a")
    assert list(metrics.samples()) == []


def test_threads_count_together() -> None:
    """A counter that several threads raise loses nothing."""
    metrics = SelfMetrics()

    def count() -> None:
        for _ in range(2_000):
            metrics.add(RECORDS, partition="a")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.value(RECORDS, partition="a") == 8_000
