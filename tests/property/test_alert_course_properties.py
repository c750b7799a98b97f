"""Statements about every sequence of slots."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.alert_sequences import NO_DEADLINE, played
from support.paging_series import plainly_paging

SLOTS = st.text("oo..?_", min_size=1, max_size=60)
RULES = st.sampled_from([(1, 1), (2, 3), (3, 5), (4, 6)])


@settings(max_examples=60, deadline=None)
@given(SLOTS, RULES)
def test_gaps_and_explained_slots_never_move_an_alert(slots: str, rule: tuple[int, int]) -> None:
    """Without a deadline, leaving out slots that say nothing changes no state."""
    states, fires = played(slots, *rule, NO_DEADLINE)
    kept = [index for index, symbol in enumerate(slots) if symbol in "o."]
    without, fires_without = played("".join(slots[index] for index in kept), *rule, NO_DEADLINE)
    shown = "".join(states[index] for index in kept)
    assert shown == without
    assert fires == fires_without


@settings(max_examples=60, deadline=None)
@given(SLOTS, RULES, st.integers(1, 8))
def test_a_slot_without_windows_never_resolves(
    slots: str, rule: tuple[int, int], deadline: int
) -> None:
    """Silence is not health: only slots under the line may end an alert."""
    states, _ = played(slots, *rule, deadline)
    for symbol, state in zip(slots, states, strict=True):
        if state == "R":
            assert symbol == "."


@settings(max_examples=60, deadline=None)
@given(SLOTS, RULES, st.integers(1, 8))
def test_an_alert_fires_exactly_if_k_of_n_slots_with_data_were_over(
    slots: str, rule: tuple[int, int], deadline: int
) -> None:
    """Neither gaps nor states on the way hide a page or invent one."""
    _, fires = played(slots, *rule, deadline)
    values = np.array([{"o": 1.0, ".": -1.0}.get(symbol, np.nan) for symbol in slots])
    assert (fires > 0) == plainly_paging(values, 0.0, *rule)
