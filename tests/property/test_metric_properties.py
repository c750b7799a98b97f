from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import metrics_plain as oracle

from moescope.core.metrics import BY_NAME, COUNT_METRICS
from moescope.processors.metrics import count_metrics, divergence

ROUNDING = 1e-12


@st.composite
def routed_counts(draw: st.DrawFn) -> tuple[list[int], int]:
    """Counts that tokens with k distinct experts can really produce, and k."""
    experts = draw(st.integers(1, 24))
    top_k = draw(st.integers(1, experts))
    chosen = st.sets(st.integers(0, experts - 1), min_size=top_k, max_size=top_k)
    counts = [0] * experts
    for ids in draw(st.lists(chosen, min_size=1, max_size=12)):
        repeated = draw(st.sampled_from([1, 1, 3, 1_000]))
        for expert in ids:
            counts[expert] += repeated
    return counts, top_k


any_counts = st.integers(1, 40).flatmap(
    lambda experts: st.lists(
        st.one_of(st.integers(0, 9), st.integers(0, 2**40)), min_size=experts, max_size=experts
    )
)


@given(any_counts, st.data())
def test_load_metrics_equal_the_formulas(counts: list[int], data: st.DataObject) -> None:
    """Vectorised arithmetic gives what exact fractions give."""
    top_k = data.draw(st.integers(1, len(counts)))
    expected = oracle.count_metrics(counts, top_k)
    actual = count_metrics(counts, top_k)
    for name, value in expected.items():
        if value is None:
            assert math.isnan(actual[name]), name
        else:
            assert float(actual[name]) == pytest.approx(value, rel=ROUNDING, abs=1e-15), name


@given(routed_counts(), st.data())
def test_divergences_equal_the_formulas(case: tuple[list[int], int], data: st.DataObject) -> None:
    """Both smoothed divergences agree with their definitions on exact fractions."""
    counts, _ = case
    same_size = st.lists(st.integers(0, 10**9), min_size=len(counts), max_size=len(counts))
    reference = data.draw(same_size.filter(any))
    js, kl = oracle.divergence(counts, oracle.smoothed(reference))
    actual = divergence(counts, reference)
    assert float(actual.js) == pytest.approx(js, rel=1e-11, abs=1e-15)
    assert float(actual.kl) == pytest.approx(kl, rel=1e-11, abs=1e-15)


@given(routed_counts(), st.data())
def test_attainable_bounds_are_never_exceeded(
    case: tuple[list[int], int], data: st.DataObject
) -> None:
    """No window of tokens with k distinct experts lies outside of the declared bounds."""
    counts, top_k = case
    values: dict[str, Any] = dict(count_metrics(counts, top_k))
    experts = len(counts)
    values["js_uniform"], values["kl_uniform"] = divergence(counts, np.full(experts, 1 / experts))
    other = data.draw(st.permutations(counts))
    values["js_trailing"], values["kl_trailing"] = divergence(counts, np.array(other))
    for name, value in values.items():
        low, high = BY_NAME[name].bounds(experts, top_k)
        if not math.isnan(value):
            assert low - ROUNDING <= value <= high + ROUNDING, name


@given(routed_counts(), st.data())
def test_load_metrics_ignore_which_expert_is_which(
    case: tuple[list[int], int], data: st.DataObject
) -> None:
    """Relabelling experts changes no load metric."""
    counts, top_k = case
    before = count_metrics(counts, top_k)
    after = count_metrics(data.draw(st.permutations(counts)), top_k)
    for metric in COUNT_METRICS:
        assert np.allclose(
            before[metric.name], after[metric.name], rtol=ROUNDING, atol=1e-15, equal_nan=True
        )


@given(routed_counts(), st.integers(2, 1_000))
def test_load_metrics_ignore_the_length_of_the_window(
    case: tuple[list[int], int], factor: int
) -> None:
    """Load metrics compare shares: the same shares over more tokens are the same load."""
    counts, top_k = case
    before = count_metrics(counts, top_k)
    after = count_metrics(np.array(counts) * factor, top_k)
    for metric in COUNT_METRICS:
        assert np.allclose(
            before[metric.name], after[metric.name], rtol=ROUNDING, atol=1e-14, equal_nan=True
        )
