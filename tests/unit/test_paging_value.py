from __future__ import annotations

import math

import pytest

from moescope.core.exceedance import Exceedance


@pytest.mark.parametrize(
    ("kind", "windows", "red", "value", "expected"),
    [
        ("token", 12, 3, 5.0, 5.0),
        ("token", 13, 3, 5.0, 0.0),
        ("token", 2, 2, 5.0, 0.0),
        ("token", 3, 3, 5.0, 5.0),
        ("token", 100, 24, 5.0, 0.0),
        ("token", 100, 25, 5.0, 5.0),
        ("token", 100, 0, -2.0, -2.0),
        ("token", 5, 5, -math.inf, -math.inf),
        ("time", 1, 1, 5.0, 5.0),
    ],
)
def test_a_few_red_token_windows_are_no_page(
    kind: str, windows: int, red: int, value: float, expected: float
) -> None:
    """One odd request never pages, however odd; windows of the whole traffic always may."""
    worst = Exceedance(value, "gini", 0, 0, "r", windows, red, 0)
    assert worst.paging_value(kind) == expected
