from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import metrics_plain as oracle

from moescope.core.metrics import METRIC_NAMES
from moescope.core.thresholds import BaselineReference
from moescope.processors.finish_kernel import finish_counts, layer_references
from moescope.processors.metrics import baseline_loads, distinct_mixes

any_count = st.one_of(st.integers(0, 9), st.integers(0, 2_000), st.integers(0, 2**40))


@st.composite
def windows_with_a_reference(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Counts of a window and of a reference, at equal scale or far apart, and k."""
    experts = draw(st.integers(1, 40))
    counts = draw(st.lists(any_count, min_size=experts, max_size=experts).filter(any))
    if draw(st.booleans()):
        reference = [max(0, c + draw(st.integers(-3, 3))) for c in counts]
    else:
        reference = draw(st.lists(any_count, min_size=experts, max_size=experts))
    return counts, reference, draw(st.integers(1, experts))


@given(windows_with_a_reference())
def test_compiled_metrics_equal_the_formulas(case: tuple[list[int], list[int], int]) -> None:
    """What is stored for each window is what the definitions say, on exact fractions."""
    counts, reference, top_k = case
    experts = len(counts)
    expected: dict[str, float | None] = dict(oracle.count_metrics(counts, top_k))
    expected["js_uniform"], expected["kl_uniform"] = oracle.divergence(
        counts, oracle.smoothed([1] * experts)
    )
    expected["js_trailing"], expected["kl_trailing"] = (
        oracle.divergence(counts, oracle.smoothed(reference)) if any(reference) else (None, None)
    )
    expected["routing_shift"] = expected["js_trailing"]
    n = sum(counts)
    expected["overlap_chance"] = float(top_k * sum(Fraction(c, n) ** 2 for c in counts))
    baseline = BaselineReference(scenes={"a": np.array([reference])}, tokens={"a": 1})
    values = finish_counts(
        np.array([[counts]], np.uint64),
        top_k,
        trailing=layer_references(np.array([reference]), top_k),
        mixes=distinct_mixes(baseline_loads(baseline), [{"a": 1}]),
    )
    for name, value in expected.items():
        actual = float(values[0, 0, METRIC_NAMES.index(name)])
        if value is None:
            assert math.isnan(actual), name
        else:
            assert actual == pytest.approx(value, rel=1e-11, abs=1e-15), name
