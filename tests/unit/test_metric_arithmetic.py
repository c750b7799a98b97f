from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from moescope.core.batch import Placement
from moescope.core.errors import InputError
from moescope.core.metrics import (
    BY_NAME,
    COUNT_METRICS,
    DROPS_UNKNOWN,
    METRIC_NAMES,
    METRICS,
    Needs,
    Reference,
)
from moescope.core.router_sums import (
    FIXED_POINT,
    ROUTER_SUMS,
    PassSums,
    PositionCounts,
    SimilaritySums,
)
from moescope.core.thresholds import BaselineReference
from moescope.processors.metrics import (
    MAX_ASSIGNMENTS,
    count_metrics,
    divergence,
    metric_values,
    smoothed_reference,
    uniform_reference,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

Counts = dict[str, Any]


@pytest.fixture(scope="module")
def real_counts(repository_root: Path) -> Counts:
    """Tokens per expert of OLMoE and Mixtral."""
    path = repository_root / "tests" / "data" / "olmoe_mixtral_expert_counts.json"
    counts: Counts = json.loads(path.read_text(encoding="utf-8"))
    return counts


def _js(counts: Counts, model: str, one: str, other: str, layer: str) -> float:
    domains = counts[model]["expert_counts"]
    p = np.array(domains[one][layer])
    return float(divergence(p, np.array(domains[other][layer])).js)


def _concentrated(experts: int, top_k: int, tokens: int) -> NDArray[np.int64]:
    counts = np.zeros(experts, np.int64)
    counts[:top_k] = tokens
    return counts


@pytest.mark.parametrize(("experts", "top_k"), [(64, 8), (256, 8), (128, 1), (8, 2), (7, 5)])
def test_one_side_of_the_bounds_is_reached_by_the_same_k_experts(experts: int, top_k: int) -> None:
    """All tokens on the same k experts attain the bad bound of every load metric but two."""
    values = count_metrics(_concentrated(experts, top_k, 1000), top_k)
    for metric in COUNT_METRICS:
        low, high = metric.bounds(experts, top_k)
        if metric.name in {"hot_expert_share", "cold_expert_share", "drop_rate"}:
            continue
        worst = low if metric.name in {"load_entropy", "jain_index", "working_set"} else high
        assert float(values[metric.name]) == pytest.approx(worst, rel=1e-12, abs=1e-12), metric.name


@pytest.mark.parametrize(("experts", "top_k"), [(64, 8), (8, 2), (7, 5), (5, 5), (3, 1)])
def test_the_other_side_is_reached_by_uniform_load(experts: int, top_k: int) -> None:
    """Uniform load attains the good bound of every load metric."""
    values = count_metrics(np.full(experts, 40, np.int64), top_k)
    for metric in COUNT_METRICS:
        if metric.name == "drop_rate":
            continue
        low, high = metric.bounds(experts, top_k)
        best = high if metric.name in {"load_entropy", "jain_index", "working_set"} else low
        assert float(values[metric.name]) == pytest.approx(best, rel=1e-15, abs=0), metric.name


def test_hot_expert_share_reaches_its_bound() -> None:
    """One fewer than half of the experts can be hot at once."""
    counts = np.zeros(64, np.int64)
    counts[:31] = 8 * 100
    assert count_metrics(counts, 8)["hot_expert_share"] == 31 / 64
    assert BY_NAME["hot_expert_share"].bounds(64, 8) == (0.0, 31 / 64)


def test_cold_expert_share_can_exceed_all_but_k() -> None:
    """With a large k, 15 warm experts suffice for 16 of 64, and the bound knows it."""
    counts = np.full(64, 1, np.int64)
    tokens = 49
    counts[:15] = tokens
    # 15 x 49 + 49 = 16 x 49: feasible, each of the 49 tokens has one cold expert.
    assert counts.sum() == 16 * tokens
    assert count_metrics(counts, 16)["cold_expert_share"] == 49 / 64
    assert BY_NAME["cold_expert_share"].bounds(64, 16) == (0.0, 49 / 64)
    assert BY_NAME["cold_expert_share"].bounds(64, 8) == (0.0, 56 / 64)


def test_hot_and_cold_are_strict() -> None:
    """Exactly twice the mean is not hot; exactly a tenth of it is not cold."""
    values = count_metrics([20, 1, 9, 10], 1)
    assert values["hot_load_share"] == 0.0
    assert values["cold_expert_share"] == 0.0
    values = count_metrics([21, 0, 9, 10], 1)
    assert values["hot_load_share"] == 21 / 40
    assert values["cold_expert_share"] == 1 / 4


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_hot_is_exact_where_floats_are_not(shift: int) -> None:
    """The comparison with twice the mean is made in integers, far beyond float precision."""
    mean = 2**43 // 3
    counts = np.array([2 * mean + shift, mean - shift, 0], np.uint64)
    values = count_metrics(counts, 1)
    assert bool(values["hot_load_share"] > 0) == (shift > 0)


def test_a_window_without_assignments_is_null() -> None:
    """No data is neither healthy nor bad: every metric is NaN, beside rows that have values."""
    counts = np.array([[0, 0, 0], [1, 2, 3]])
    sums = np.ones((2, 1, ROUTER_SUMS), np.int64)
    positions = PositionCounts(index=np.array([0, 1]), count=np.array([2, 1]))
    pane = SimilaritySums(
        start_us=0,
        size_us=1_000_000,
        weighted=np.array([[FIXED_POINT, 0, 0]]),
        squares=np.array([FIXED_POINT]),
        requests=np.array([2]),
        left_out=np.array([0]),
    )
    values = metric_values(
        counts[:, None],
        1,
        trailing=np.array([5, 5, 5]),
        dropped=np.array([[0], [2]]),
        baseline=BaselineReference(scenes={"a": np.array([[4, 5, 6]])}, tokens={"a": 1}),
        scene_tokens=[{"a": 0}, {"a": 6}],
        router=sums,
        positions=[positions, positions],
        similarity=[[pane], [pane]],
        passes=[PassSums(*np.full((3, 1), FIXED_POINT))] * 2,
        placement=Placement(version=1, ranks=2, rank_of=np.array([[0, 0, 1]], np.uint16)),
    )[:, 0]
    assert np.isnan(values[0]).all()
    assert np.isfinite(values[1]).all()


def test_windows_that_lack_a_part_lack_its_metrics_only() -> None:
    """Each metric is null where its own source is missing, window by window."""
    counts = np.array([[[4, 2]], [[3, 3]]])
    positions = PositionCounts(index=np.array([0, 1]), count=np.array([2, 1]))
    values = metric_values(counts, 1, positions=[None, positions], similarity=[[], []])
    null = [{METRIC_NAMES[m] for m in np.flatnonzero(np.isnan(row[0]))} for row in values]
    assert null[0] - null[1] == {"positional_agreement"}
    assert null[1] == {
        metric.name
        for metric in METRICS
        if metric.needs
        in {
            Needs.DROPS,
            Needs.SCORES,
            Needs.PAIRS,
            Needs.RANKS,
            Needs.REQUESTS,
            Needs.PASSES,
            Needs.PLACEMENT,
        }
        or metric.reference in {Reference.TRAILING, Reference.BASELINE}
    }


def test_a_single_expert() -> None:
    """E = 1 leaves nothing to compare: entropy is null, the rest says perfectly even."""
    values = {name: float(value) for name, value in count_metrics([7], 1).items()}
    assert math.isnan(values.pop("load_entropy"))
    assert math.isnan(values.pop("drop_rate"))
    assert values == {
        "hot_load_share": 0.0,
        "topk_load_share": 1.0,
        "hot_expert_share": 0.0,
        "cold_expert_share": 0.0,
        "utilization_cv": 0.0,
        "jain_index": 1.0,
        "max_violation": 0.0,
        "gini": 0.0,
        "working_set": 1.0,
    }
    assert np.array_equal(np.stack(divergence([7], [3])), [0.0, 0.0])


def test_drop_rate_is_null_where_the_producer_does_not_tell() -> None:
    """Unknown drops are not zero drops."""
    counts = np.array([[4, 4], [4, 4]])
    assert np.isnan(count_metrics(counts, 1)["drop_rate"]).all()
    rates = count_metrics(counts, 1, dropped=np.array([2, DROPS_UNKNOWN], np.uint64))["drop_rate"]
    assert rates[0] == 0.25
    assert math.isnan(rates[1])


def test_any_leading_shape() -> None:
    """Windows and layers come in any shape, also none and empty."""
    counts = np.arange(24).reshape(2, 3, 4)
    whole = count_metrics(counts, 2)
    assert whole["gini"].shape == (2, 3)
    assert count_metrics(counts[1, 2], 2)["gini"] == whole["gini"][1, 2]
    assert count_metrics(np.zeros((0, 4), np.int64), 2)["gini"].shape == (0,)


@pytest.mark.parametrize(
    ("counts", "top_k", "message"),
    [
        ([1.0, math.nan], 1, "must be integers"),
        ([1, -1], 1, "negative"),
        ([1, 2], 3, "between 1 and E = 2"),
        ([1, 2], 0, "between 1 and E = 2"),
        ([], 1, "one entry per expert"),
        (5, 1, "one entry per expert"),
        ([MAX_ASSIGNMENTS, 1], 1, "too many assignments"),
        (np.full(3, 2**63, np.uint64), 1, "too many assignments"),
        (np.zeros(65_536, np.int64), 1, "at most 65535"),
    ],
)
def test_bad_counts_are_refused(counts: Any, top_k: int, message: str) -> None:
    """Bad input gets a clear error, never a number."""
    with pytest.raises(InputError, match=message):
        count_metrics(counts, top_k)


@pytest.mark.parametrize("dropped", [[1, 2, 3], [0.5, 0.5], [-1, 0], [9, 0]])
def test_bad_drops_are_refused(dropped: list[Any]) -> None:
    """Drops are part of the counted assignments, one number per window."""
    with pytest.raises(InputError, match="Dropped assignments"):
        count_metrics([[4, 4], [4, 4]], 1, dropped=dropped)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ([0.5, 0.6], "no distribution"),
        ([1.0, 0.0], "no distribution"),
        ([math.nan, 1.0], "no distribution"),
        ([0.2, 0.3, 0.5], "each of the 2 experts"),
        ([-1, 3], "negative"),
    ],
)
def test_bad_references_are_refused(reference: list[Any], message: str) -> None:
    """A reference that is no distribution would give meaningless distances."""
    with pytest.raises(InputError, match=message):
        divergence([3, 4], reference)


def test_smoothing_of_a_reference() -> None:
    """Half an assignment per expert; without any assignment there is no reference."""
    assert smoothed_reference([0, 3]).tolist() == [0.5 / 4, 3.5 / 4]
    assert np.isnan(smoothed_reference([0, 0])).all()
    assert np.isnan(divergence([1, 2], [0, 0])).all()


def test_divergence_of_unused_experts_is_finite() -> None:
    """Unsmoothed Kullback-Leibler divergence would be infinite here."""
    js, kl = divergence([100, 0, 0, 0], [0, 0, 0, 1000])
    assert 0.8 < js < 1.0
    assert 3.0 < kl < math.inf


def test_divergence_from_uniform_approaches_its_bound() -> None:
    """The bounds of the uniform divergences are limits: approached, not passed."""
    counts = _concentrated(64, 8, 10**9)
    js, kl = divergence(counts, uniform_reference(64))
    for value, name in ((js, "js_uniform"), (kl, "kl_uniform")):
        bound = BY_NAME[name].bounds(64, 8)[1]
        assert value < bound
        assert value == pytest.approx(bound, rel=1e-6)


def test_divergence_between_disjoint_loads_approaches_its_bound() -> None:
    """Two sets of k experts are farthest apart when they overlap least."""
    for experts, top_k in ((8, 2), (7, 5)):
        one = _concentrated(experts, top_k, 10**9)
        value = divergence(one, one[::-1].copy()).js
        bound = BY_NAME["js_trailing"].bounds(experts, top_k)[1]
        assert value <= bound
        assert value == pytest.approx(bound, abs=1e-6)


def test_js_is_symmetric_for_long_windows() -> None:
    """Smoothing vanishes with the number of assignments, and with it the only asymmetry."""
    one, other = np.array([10, 20, 70]) * 10**6, np.array([40, 30, 30]) * 10**6
    assert divergence(one, other).js == pytest.approx(divergence(other, one).js, rel=1e-5)


def test_healthy_maximum_load_of_olmoe(real_counts: Counts) -> None:
    """Healthy max/mean runs from 2.5 to 7.8: a fixed line at 5 would fire on healthy traffic."""
    ratios = {
        (domain, layer): float(count_metrics(counts, 8)["max_violation"]) + 1
        for domain, layers in real_counts["olmoe"]["expert_counts"].items()
        for layer, counts in layers.items()
    }
    assert max(ratios, key=lambda key: ratios[key]) == ("arxiv", "0")
    assert ratios["arxiv", "0"] == pytest.approx(7.8, abs=0.05)
    assert min(r for (domain, _), r in ratios.items() if domain == "c4") == pytest.approx(
        2.5, abs=0.05
    )


def test_domains_move_routing_a_thousand_times_more_than_tuning(real_counts: Counts) -> None:
    """Thresholds belong to a model, layer and scene: measured on real routing."""
    assert _js(real_counts, "olmoe", "c4", "github", "15") == pytest.approx(0.389, abs=5e-4)
    assert _js(real_counts, "mistral", "c4", "github", "15") == pytest.approx(0.005, abs=5e-4)
    tuned = [
        float(
            divergence(
                np.array(real_counts["olmoe-sft"]["expert_counts"]["tulu"][layer]),
                np.array(real_counts["olmoe-dpo"]["expert_counts"]["tulu"][layer]),
            ).js
        )
        for layer in ("0", "7", "15")
    ]
    assert 0 < max(tuned) <= 2.0e-4


def test_needs_numpy_only() -> None:
    """Analysts import the arithmetic without the server's libraries."""
    code = (
        "import sys; import moescope.processors.metrics; "
        "print([m for m in ('numba', 'duckdb', 'polars', 'pyarrow', 'scipy') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
