from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moescope.core.thresholds import LineSource, MetricLines, Standing
from moescope.processors.metrics import exceedance

NAN = math.nan


def _lines(red_low: list[float], red_high: list[float], spread: list[float]) -> MetricLines:
    none = np.full(len(spread), NAN)
    return MetricLines(
        warn_low=none, warn_high=none, red_low=np.array(red_low), red_high=np.array(red_high),
        centre=none, spread=np.array(spread),
        standing=Standing.FIRM, source=LineSource.OWN, units=1_000,
    )  # fmt: skip


def test_each_side_and_both() -> None:
    """Distances count in spreads past the line; the worse side wins; null stays null."""
    lines = _lines([NAN, 0.25, 0.25, NAN], [0.5, NAN, 0.75, NAN], [0.25, 0.125, 0.5, 1.0])
    values = np.array([[1.0, 0.0, 0.0, 9.0], [0.5, 0.25, 0.5, NAN], [NAN, NAN, NAN, NAN]])
    assert np.array_equal(
        exceedance(values, lines),
        [[2.0, 2.0, 0.5, NAN], [0.0, 0.0, -0.5, NAN], [NAN] * 4],
        equal_nan=True,
    )


@given(st.floats(-10, 10, width=32), st.floats(-10, 10, width=32), st.floats(-10, 10, width=32))
def test_positive_exactly_where_red(value: float, low: float, high: float) -> None:
    """A value on its line is not past it: levels and paging agree on what is red."""
    past = exceedance(np.array([value]), _lines([low], [high], [0.5]))
    assert bool(past[0] > 0) == (value > high or value < low)
