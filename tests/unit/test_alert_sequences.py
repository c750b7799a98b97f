"""The state machine of an alert, by sequences written as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.alert_sequences import Sequence, played, read_sequences, rule_of

from moescope.core.exceedance import SLOT_US
from moescope.jobs.paging import AlertState, begin, observe, retire, silence_deadline
from moescope.jobs.paging.alert_course import Verdict

CASES = read_sequences(Path(__file__).parents[1] / "data" / "alert_sequences.toml")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_states_follow_the_slots(case: Sequence) -> None:
    """Each line of the file is a promise to whoever is paged."""
    states, fires = played(case.slots, case.needed, case.of, case.no_data_after)
    assert states == case.states
    assert fires == case.fires


def test_deadline_is_the_first_slot_that_ends_the_wait() -> None:
    """Settings are in seconds, slots in five of them: the wait is rounded up."""
    course, _ = begin(0, rule_of(2, 3))
    assert silence_deadline(course, 300_000_000) == 300_000_000
    assert silence_deadline(course, 301_000_000) == 305_000_000


def test_a_retired_alert_is_over() -> None:
    """Switching judging off closes an alert, and says that this is why."""
    course, _ = begin(0, rule_of(1, 1))
    over, change = retire(course, SLOT_US, "judging is off")
    assert over.state is AlertState.RESOLVED
    assert over.resolved_us == SLOT_US
    assert change is not None
    assert change.why == "judging is off"
    assert silence_deadline(over, 1) is None


def test_changes_say_why_in_numbers() -> None:
    """An event row is read by people at night."""
    rule = rule_of(2, 3)
    course, first = begin(0, rule)
    assert first is not None
    assert first.why == "1 of the last 3 slots with data over the line, 2 needed"
    _, fired = observe(course, SLOT_US, Verdict.OVER, rule)
    assert fired is not None
    assert (fired.slot_us, fired.state) == (SLOT_US, AlertState.FIRING)
    assert fired.why == "2 of the last 3 slots with data over the line, 2 needed"
