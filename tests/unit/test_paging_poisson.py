"""The exact Poisson bound against tabulated quantiles of chi-square."""

from __future__ import annotations

import pytest

from moescope.jobs.paging import poisson_rate_bound
from moescope.jobs.paging.solve import allowed_pages

CHI_SQUARE_95 = {
    2: 5.991464547, 4: 9.487729037, 6: 12.59158724, 8: 15.50731306, 20: 31.41043284,
    60: 79.08194449, 100: 124.3421134,
}  # fmt: skip
"""Degrees of freedom → 0.95 quantile, from printed tables."""


@pytest.mark.parametrize("degrees", CHI_SQUARE_95)
def test_bound_is_half_of_the_chi_square_quantile(degrees: int) -> None:
    """An approximation would be off where counts are small, which is where it matters."""
    bound = poisson_rate_bound(degrees // 2 - 1, 1.0)
    assert bound == pytest.approx(CHI_SQUARE_95[degrees] / 2, rel=1e-8)


def test_bound_scales_with_the_span_and_other_confidences() -> None:
    """Rates are per day, whatever the span; 99 % of nothing seen is −ln 0.01."""
    assert poisson_rate_bound(3, 2.0) == pytest.approx(poisson_rate_bound(3, 1.0) / 2)
    assert poisson_rate_bound(0, 1.0, 0.99) == pytest.approx(4.605170186, rel=1e-8)


def test_bound_of_many_events_stays_finite() -> None:
    """Thousands of pages overflow a product of powers and factorials."""
    assert 5_000 < poisson_rate_bound(5_000, 1.0) < 5_000 + 2 * 5_000**0.5


@pytest.mark.parametrize(("events", "span"), [(-1, 1.0), (0, 0.0), (0, float("nan"))])
def test_bound_refuses_what_is_no_observation(events: int, span: float) -> None:
    """A span of zero days must not turn into an infinite or negative rate."""
    with pytest.raises(ValueError, match="span"):
        poisson_rate_bound(events, span)


@pytest.mark.parametrize(
    ("budget_days", "allowed"), [(2.9, None), (3.0, 0), (4.7, 0), (4.8, 1), (16.9, 9), (17.0, 10)]
)
def test_allowed_pages_are_those_whose_bound_keeps_the_budget(
    budget_days: float, allowed: int | None
) -> None:
    """Below 3 / budget days nothing can be shown; above, the bounds 4.74, 16.96, … decide."""
    assert allowed_pages(0.5, budget_days / 0.5) == allowed
