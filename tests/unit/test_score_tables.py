from __future__ import annotations

import math

import numpy as np
import pytest

from moescope.core.batch import Routes
from moescope.core.router_sums import FIXED_POINT
from moescope.processors.kernels.router import NOT_A_SCORE
from moescope.processors.score_tables import entropy_table, margin_table, router_planes


def test_largest_entropy_is_one() -> None:
    """Codes run from 0 to ln E, which is 1 in units of ln E whatever E is."""
    for experts in (2, 60, 256):
        for bits, codes in ((4, 16), (8, 256)):
            table = entropy_table(bits, experts)
            assert len(table) == codes
            assert table[0] == 0
            assert table[-1] == pytest.approx(FIXED_POINT, abs=1)


def test_margin_of_one() -> None:
    """Code 13 of 4 bits, code 215 of 8 bits and the half-precision 1 stand for 1."""
    codes = {4: 13, 8: 215, 16: int(np.float16(1).view(np.uint16))}
    assert {bits: int(margin_table(bits)[code]) for bits, code in codes.items()} == dict.fromkeys(
        codes, FIXED_POINT
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.5])
def test_half_precision_that_is_no_score(value: float) -> None:
    """Not a number, infinite and negative values must not enter any sum."""
    code = int(np.float16(value).view(np.uint16))
    assert margin_table(16)[code] == NOT_A_SCORE
    assert entropy_table(16, 8)[code] == NOT_A_SCORE


def test_one_expert_has_no_entropy() -> None:
    """Ln 1 is 0: there is nothing to divide by."""
    assert (entropy_table(8, 1) == NOT_A_SCORE).all()


def test_planes_that_are_absent_are_empty() -> None:
    """A batch of ids alone gives the kernels nothing to read beside them."""
    planes = router_planes(Routes.from_ids(np.zeros((1, 1, 1), np.int64), 4), 4)
    assert [len(plane) for plane in planes] == [0] * 5
