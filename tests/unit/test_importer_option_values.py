"""Values of importers' options, as people type them."""

from __future__ import annotations

import pytest

from moescope.producers.importers.options import integer


@pytest.mark.parametrize("typed", ["nan", "", "1.5", "0", "65536", "eight"])
def test_a_number_out_of_bounds_and_no_number_at_all_are_told_what_is_wanted(typed: str) -> None:
    """Never in Python's words, which name no bounds."""
    with pytest.raises(ValueError, match="It has to be a whole number, 1 to 65535"):
        integer(1, 65535)(typed)


def test_a_whole_number_within_bounds_is_taken() -> None:
    """Both bounds are."""
    assert [integer(1, 64)(typed) for typed in ("1", " 8 ", "64")] == [1, 8, 64]
