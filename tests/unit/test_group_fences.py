"""How often a processor whose name somebody else has taken joins again."""

from __future__ import annotations

import pytest

from moescope.core.clock import ManualClock
from moescope.processors.group.errors import DuplicateProcessorError
from moescope.processors.group.fences import ALLOWED, WITHIN_SECONDS, Fences


@pytest.fixture
def said() -> list[str]:
    """Lines of the log."""
    return []


@pytest.fixture
def clock() -> ManualClock:
    """Moved by the test."""
    return ManualClock()


@pytest.fixture
def fences(clock: ManualClock, said: list[str]) -> Fences:
    """Of one name."""
    return Fences("processor-1", clock, said.append)


def test_each_membership_is_fenced_once(fences: Fences, said: list[str]) -> None:
    """Both threads find out, and commits that still wait are fenced by our own next membership."""
    fences.note("a", "reading")
    fences.note("a", "committing")
    assert fences.take()
    fences.note("a", "committing what waited")
    assert not fences.take()
    assert len(said) == 1
    fences.note("b", "a real double")
    assert fences.take()
    assert len(said) == 2


def test_fences_while_joining_have_no_member_yet(fences: Fences, said: list[str]) -> None:
    """Each of them counts."""
    for _ in range(2):
        fences.note("", "joining")
        assert fences.take()
    assert len(said) == 2


def test_a_living_double_is_believed_in_and_old_fences_are_forgotten(
    fences: Fences, clock: ManualClock
) -> None:
    """Too many within ten minutes end the processor; spread over hours they never do."""
    for number in range(2 * ALLOWED):
        fences.note(f"rare-{number}", "a broker was killed")
        assert fences.take()
        clock.sleep(WITHIN_SECONDS)
    clock.sleep(1.0)
    for number in range(ALLOWED):
        fences.note(f"often-{number}", "a double")
        assert fences.take()
    with pytest.raises(DuplicateProcessorError, match="'processor-1'"):
        fences.note("last", "a double")
