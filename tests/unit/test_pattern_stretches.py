from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moescope.jobs.patterns.stretches import Shown, stretches

SECOND = 1_000_000


def shown(text: str, *, begin: int = 0) -> list[Shown]:
    """Windows of 1 s from a picture: a digit shows it, `-` does not, a space is a missing one."""
    return [
        Shown(begin + at * SECOND, begin + (at + 1) * SECOND, int(sign) / 10 if sign != "-" else 0)
        for at, sign in enumerate(text)
        if sign != " "
    ]


@pytest.mark.parametrize(
    ("text", "needed", "of", "expected"),
    [
        ("-----", 2, 3, []),
        ("--5--", 1, 1, [(2, 3)]),
        ("--5--", 2, 3, []),
        ("--5-6--", 2, 3, [(2, 5)]),
        ("--5--6--", 2, 3, []),
        ("55555", 4, 5, [(0, 5)]),
        ("555-5555-", 4, 5, [(0, 8)]),
        ("55---55", 2, 2, [(0, 2), (5, 7)]),
        ("55      55", 2, 4, [(0, 2), (8, 10)]),
        ("5  5", 2, 4, [(0, 4)]),
    ],
)
def test_k_of_n_windows_make_a_stretch(
    text: str, needed: int, of: int, expected: list[tuple[int, int]]
) -> None:
    """A stretch begins and ends with a window that shows it, and gaps that are too long end it."""
    found = stretches(shown(text), needed, of)
    assert [(each.begin_us // SECOND, each.end_us // SECOND) for each in found] == expected


def test_the_strongest_window_is_the_evidence() -> None:
    """A finding points at the window that shows most."""
    (found,) = stretches(shown("3-7-79--"), 2, 3)
    assert (found.strength, found.peak_us, found.windows) == (0.9, 5 * SECOND, 4)


@given(st.text(alphabet="-159", min_size=1, max_size=40), st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=60)
def test_stretches_hold_exactly_the_windows_of_full_groups(
    text: str, needed: int, more: int
) -> None:
    """Every window in a group of `of` with `needed` showing is in a stretch, and no other."""
    of = needed + more
    windows = shown(text)
    members = set()
    for last in range(len(windows)):
        group = [each for each in windows[max(0, last - of + 1) : last + 1] if each.strength > 0]
        if len(group) >= needed:
            members.update(group)
    found = stretches(reversed(windows), needed, of)
    covered = {
        window
        for window in windows
        if window.strength > 0
        and any(each.begin_us <= window.begin_us < each.end_us for each in found)
    }
    assert sum(each.windows for each in found) == len(members)
    assert members <= covered
