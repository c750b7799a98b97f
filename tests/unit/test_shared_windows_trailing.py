"""The owner's trailing references against the formula, in plain Python."""

from __future__ import annotations

import random

import numpy as np
import pytest

from moescope.core.clock import END_OF_TIME
from moescope.core.emission import LaneKey, SharedDelta, TrailingReference
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.storage.shared import TrailingReferences

SECOND = 1_000_000
PERIOD = 300 * SECOND
LANE = LaneKey("live", "m", "r", "model", "full", 1.0, 3, 1, (0,))


def pane(period: float, counts: list[int], scope: ScopeKind = ScopeKind.ALL) -> SharedDelta:
    """A time pane somewhere in a period."""
    time_us = int(period * PERIOD) // SECOND * SECOND
    return SharedDelta(
        lane=LANE, phase="decode", kind=WindowKind.TIME, scope_kind=scope, scope_value="",
        pane=time_us, counts=np.array([counts], np.uint32), dropped=np.zeros(1, np.uint64),
        seen=sum(counts), first_time_us=time_us, last_time_us=time_us,
    )  # fmt: skip


def plain_reference(slots: dict[int, list[int]], period: int) -> list[int] | None:
    """Run acc ← acc − ⌊acc / 8⌋ + slot at each grid point up to `period`."""
    if period < min(slots) + 2:
        return None
    acc = [0, 0, 0]
    for point in range(min(slots) + 2, period + 1):
        slot = slots.get(point - 2, [0, 0, 0])
        acc = [value - value // 8 + new for value, new in zip(acc, slot, strict=True)]
    return acc


def found(trailing: TrailingReferences, period: float) -> list[int] | None:
    """Counts of the reference for a window that closed in a period."""
    reference, _ = trailing.at(LANE, "decode", int(period * PERIOD))
    return None if reference is None else reference.counts[0].tolist()


SLOTS = {100: [80, 9, 0], 101: [1, 2, 3], 104: [1000, 0, 7], 120: [5, 5, 5]}


def filled() -> TrailingReferences:
    """All slots, each in two panes and out of order."""
    trailing = TrailingReferences(lambda lane: lane.model)
    panes = []
    for period, counts in SLOTS.items():
        half = [count // 2 for count in counts]
        rest = [count - part for count, part in zip(counts, half, strict=True)]
        panes += [pane(period, half), pane(period + 0.99, rest)]
    random.Random(1).shuffle(panes)
    for each in panes:
        trailing.add(each)
    return trailing


@pytest.mark.parametrize("steps", ["each second period", "at once", "on demand"])
def test_references_follow_the_formula(steps: str) -> None:
    """However the watermark moves, each period has the reference of the formula."""
    trailing = filled()
    for period in range(100, 140):
        if steps == "each second period" and period % 2 == 0:
            trailing.advance("live", period * PERIOD)
        if steps == "at once" and period == 100:
            trailing.advance("live", END_OF_TIME)
        assert found(trailing, period) == plain_reference(SLOTS, period), period
        assert found(trailing, period + 0.99) == plain_reference(SLOTS, period)


def test_stored_references_do_not_depend_on_the_watermarks_steps() -> None:
    """One per period that adds something, and one per period that a window names."""
    stored: list[set[str]] = []
    for steps in ([END_OF_TIME], [period * PERIOD for period in range(100, 124)] + [END_OF_TIME]):
        trailing = filled()
        names: set[str] = set()
        for watermark in steps:
            names |= {each.reference_id for each in trailing.advance("live", watermark)}
            if watermark in {END_OF_TIME, 109 * PERIOD}:
                _, new = trailing.at(LANE, "decode", 109 * PERIOD)
                names |= {each.reference_id for each in new}
        stored.append(names)
    expected = {f"m-decode-{period * 300}" for period in (102, 103, 106, 109, 122)}
    assert stored == [expected, expected]


def test_only_panes_of_the_whole_fleet_count() -> None:
    """Node and scene panes hold the same rows again."""
    trailing = TrailingReferences(lambda lane: lane.model)
    trailing.add(pane(1, [1, 1, 1], ScopeKind.NODE))
    assert trailing.advance("live", END_OF_TIME) == []


def test_a_pane_of_a_period_that_was_used_changes_nothing() -> None:
    """A reference that windows were compared with stays as it was."""
    trailing = TrailingReferences(lambda lane: lane.model)
    trailing.add(pane(1, [8, 0, 0]))
    trailing.advance("live", 3 * PERIOD)
    trailing.add(pane(1, [100, 0, 0]))
    trailing.add(pane(2, [0, 1, 0]))
    trailing.advance("live", 4 * PERIOD)
    assert found(trailing, 3) == [8, 0, 0]
    assert found(trailing, 4) == [7, 1, 0]


def test_a_restart_continues_the_sum() -> None:
    """Stored references and the panes that are not in one yet are enough."""
    whole, stored = filled(), []
    for period in (103, 106):
        stored += whole.advance("live", period * PERIOD)
    again = TrailingReferences(lambda lane: lane.model)
    copies = [
        TrailingReference(
            reference_id=each.reference_id, lane=each.lane, phase=each.phase, partition="",
            effective_from_us=each.effective_from_us, counts=each.counts.copy(),
        )
        for each in stored
    ]  # fmt: skip
    again.restore(copies, [pane(period, counts) for period, counts in SLOTS.items()])
    for trailing in (whole, again):
        trailing.advance("live", 122 * PERIOD)
    for period in (106, 110, 122, 125):
        assert found(again, period) == found(whole, period) == plain_reference(SLOTS, period)


def test_old_references_are_forgotten_but_the_newest() -> None:
    """Memory is bounded, and the sum goes on after any pause."""
    trailing = filled()
    trailing.advance("live", 110 * PERIOD)
    trailing.forget("live", 10_000 * PERIOD)
    assert found(trailing, 104) is None
    assert found(trailing, 110) == plain_reference(SLOTS, 110)
