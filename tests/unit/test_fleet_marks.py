"""How a fleet's tables may differ from those of one process, and still be as promised."""

from __future__ import annotations

import pytest
from support.fleet_judge import Verdict
from support.fleet_marks import WindowRow, different_windows

FINE = Verdict(
    batches=9, missing=0, repeated=1, assignments=90, windows=3, lost=0, twice=0, different=0,
    marked=0, late=0, unexplained=0,
)  # fmt: skip
WHOLE = WindowRow(is_marked=False, values="12")
SHORT = WHOLE._replace(values="11")
MARKED = SHORT._replace(is_marked=True)


def test_same_windows_do_not_differ() -> None:
    """Marks that both have are no difference."""
    both = {("time", 1): WHOLE, ("time", 2): MARKED}
    assert different_windows(both, both) == (0, 0, ())


@pytest.mark.parametrize("mine", [{}, {"key": SHORT}], ids=["no row", "unmarked row"])
def test_difference_without_a_mark_is_not_explained(mine: dict[str, WindowRow]) -> None:
    """A window that lacks something and does not say so is held against a run."""
    found = different_windows({(key,): row for key, row in mine.items()}, {("key",): WHOLE})
    assert found.marked == 0
    assert len(found.unexplained) == 1


def test_difference_of_a_marked_window_is_explained() -> None:
    """Whoever reads the window sees that somebody was missing."""
    assert different_windows({("key",): MARKED}, {("key",): WHOLE}) == (0, 1, ())


def test_late_rows_excuse_marked_windows_only() -> None:
    """What is lost has to be counted as late, and the windows have to say so."""
    assert FINE.is_good
    assert FINE.same_tables
    assert not FINE._replace(lost=1, late=4).is_good
    late = FINE._replace(marked=2, lost=4, late=4)
    assert late.is_good
    assert not late.same_tables
    assert not late._replace(lost=5).is_good


@pytest.mark.parametrize("wrong", ["missing", "twice", "different", "unexplained"])
def test_nothing_excuses_the_rest(wrong: str) -> None:
    """Missing batches, doubled assignments and unmarked differences fail at any pace."""
    assert not FINE._replace(marked=2, late=4, **{wrong: 1}).is_good
