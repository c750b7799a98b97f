from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING

import numpy as np
import pytest

from moescope.core.errors import InputError
from moescope.core.histograms import (
    BINS,
    NO_SLOT,
    OVERFLOW,
    UNDERFLOW,
    all_bin_edges,
    bin_edges,
    bin_index,
)
from moescope.core.metrics import (
    BY_NAME,
    COUNT_METRICS,
    DIVERGENCES,
    FAMILIES,
    HISTOGRAM_METRICS,
    JUDGED_METRICS,
    METRIC_NAMES,
    METRICS,
    Family,
    Scale,
    Side,
)
from moescope.processors.metrics import count_metrics

if TYPE_CHECKING:
    from pathlib import Path

SHAPES = [(64, 8), (256, 8), (128, 1), (60, 4), (8, 2), (8, 8), (7, 5), (1, 1)]


def test_names_are_the_interface() -> None:
    """Column names of the windows table are stored and queried: they never change silently."""
    assert METRIC_NAMES == (
        "hot_load_share",
        "topk_load_share",
        "hot_expert_share",
        "cold_expert_share",
        "load_entropy",
        "utilization_cv",
        "jain_index",
        "max_violation",
        "gini",
        "working_set",
        "drop_rate",
        "js_uniform",
        "kl_uniform",
        "js_trailing",
        "kl_trailing",
        "routing_shift",
        "mix_shift",
        "router_entropy",
        "router_margin",
        "topk_overlap",
        "overlap_chance",
        "top1_switches",
        "positional_agreement",
        "request_similarity",
        "rank_imbalance",
        "pass_imbalance",
        "pass_imbalance_max",
        "js_uniform_floor",
        "kl_uniform_floor",
        "js_trailing_floor",
        "kl_trailing_floor",
    )
    assert tuple(metric.name for metric in METRICS) == METRIC_NAMES
    assert all(BY_NAME[metric.name] is metric for metric in METRICS)


def test_metrics_with_a_histogram_are_a_prefix() -> None:
    """Histogram index and column index agree, which readers of histograms rely on."""
    assert METRICS[: len(HISTOGRAM_METRICS)] == HISTOGRAM_METRICS
    assert (*COUNT_METRICS, *DIVERGENCES) == HISTOGRAM_METRICS[: len(COUNT_METRICS) + 4]


def test_only_metrics_with_a_bad_side_alert() -> None:
    """Context never alerts, and the hot share of *experts* is context."""
    assert all(metric.side is not Side.NONE for metric in METRICS if metric.alerts)
    assert {metric.name for metric in METRICS} - {metric.name for metric in JUDGED_METRICS} == {
        "hot_expert_share",
        "working_set",
        "overlap_chance",
        "js_uniform_floor",
        "kl_uniform_floor",
        "js_trailing_floor",
        "kl_trailing_floor",
    }


def test_what_alerts_belongs_to_one_family() -> None:
    """Paging reads families: a metric without one would never page, one in two pages twice."""
    alerting = {metric.name for metric in METRICS if metric.alerts}
    members = [metric.name for family in Family for metric in FAMILIES[family]]
    assert sorted(members) == sorted(alerting)
    assert all(FAMILIES[family] for family in Family)
    judged_only = {metric.name for metric in JUDGED_METRICS} - alerting
    assert judged_only == {
        "jain_index",
        "kl_uniform",
        "kl_trailing",
        "mix_shift",
        "pass_imbalance_max",
    }


def test_bits_of_judgements_fit() -> None:
    """Each judged metric has a bit of its own in 64; the order is that of the columns."""
    assert len(JUDGED_METRICS) <= 64
    assert [m for m in METRICS if m in JUDGED_METRICS] == list(JUDGED_METRICS)


def test_every_divergence_names_its_noise_floor() -> None:
    """A divergence is never shown without the value that chance gives."""
    for metric in DIVERGENCES:
        assert metric.noise_floor is not None
        floor = BY_NAME[metric.noise_floor]
        assert (floor.reference, floor.unit) == (metric.reference, metric.unit)


def test_count_metrics_computes_what_the_registry_declares() -> None:
    """Registry and arithmetic cannot drift apart."""
    computed = count_metrics(np.ones((2, 4), np.int64), 2)
    assert tuple(computed) == tuple(metric.name for metric in COUNT_METRICS)


def test_declarations_cannot_be_changed() -> None:
    """The registry is shared by every component of a process."""
    with pytest.raises(FrozenInstanceError):
        METRICS[0].version = 2  # type: ignore[misc]  # it must fail


def test_description_and_type_serve_a_table() -> None:
    """The generated schema has a type and a one-line comment for each column."""
    for metric in METRICS:
        assert metric.sql_type == "DOUBLE"
        assert "\n" not in metric.description
        assert metric.summary in metric.description
    assert "low is bad" in BY_NAME["load_entropy"].description


def test_the_explanation_page_covers_every_metric(repository_root: Path) -> None:
    """Each metric has a row with its very formula in docs/explanation/metrics.md."""
    page = (repository_root / "docs" / "explanation" / "metrics.md").read_text(encoding="utf-8")
    lines = page.replace("\\|", "|").splitlines()
    for metric in METRICS:
        assert f"`{metric.name}`" in page, metric.name
    for metric in HISTOGRAM_METRICS:
        rows = [line for line in lines if line.startswith("|") and f"`{metric.name}`" in line]
        assert any(metric.formula in row for row in rows), metric.name


@pytest.mark.parametrize(("experts", "top_k"), SHAPES)
def test_bin_edges_ascend_and_cover_the_bounds(experts: int, top_k: int) -> None:
    """Every attainable value of a linear metric is inside, bounds included.

    Where the attainable has no end, the declared range is inside and what is beyond is kept apart.
    """
    for metric in HISTOGRAM_METRICS:
        edges = bin_edges(metric, experts, top_k)
        assert edges.shape == (BINS + 1,)
        assert (np.diff(edges) > 0).all()
        spec = metric.histogram
        assert spec is not None
        attainable = metric.bounds(experts, top_k)
        if spec.scale is Scale.LINEAR and not math.isnan(attainable[0]):
            low = attainable[0] if spec.low is None else spec.low
            high = attainable[1] if spec.high is None else spec.high
            assert math.isfinite(low)
            assert math.isfinite(high)
            beyond = [value for value in attainable if not low <= value <= high]
            assert {UNDERFLOW, OVERFLOW}.issuperset(bin_index(metric, beyond, experts, top_k))
            slots = bin_index(metric, [low, high], experts, top_k)
            assert slots[0] == 1
            assert slots[1] == (BINS if high > low else 1)
    assert all_bin_edges(experts, top_k).shape == (len(HISTOGRAM_METRICS), BINS + 1)


def test_values_outside_of_the_range_and_null() -> None:
    """Under- and overflow are kept apart from the bins; null values are in none."""
    gini = BY_NAME["gini"]
    assert bin_index(gini, [-0.1, 0.95, math.nan, math.inf, -math.inf], 64, 8).tolist() == [
        UNDERFLOW,
        OVERFLOW,
        NO_SLOT,
        OVERFLOW,
        UNDERFLOW,
    ]


def test_logarithmic_bins_have_equal_ratio() -> None:
    """A healthy divergence and one a thousand times as large are both resolved."""
    js = BY_NAME["js_uniform"]
    edges = bin_edges(js, 64, 8)
    assert np.allclose(edges[2:-1] / edges[1:-2], 2.0 ** (24 / 64), rtol=1e-12)
    assert bin_index(js, [0.0, 1.0], 64, 8).tolist() == [UNDERFLOW, BINS]


def test_noise_floors_have_no_histogram() -> None:
    """A floor is a known constant: asking for its bins is a mistake, and says so."""
    with pytest.raises(InputError, match="has no histogram"):
        bin_edges(BY_NAME["kl_uniform_floor"], 64, 8)


def test_edges_are_shared_and_read_only() -> None:
    """A caller cannot move the bins of everybody else."""
    with pytest.raises(ValueError, match="read-only"):
        bin_edges(BY_NAME["gini"], 64, 8)[0] = 7
