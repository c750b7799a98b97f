"""Where logical experts are, from what vLLM knows about physical ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moescope.core.batch import SEVERAL_RANKS
from moescope.producers.vllm_plugin.experts import rank_of_logical, settled_ranks


def test_an_expert_is_on_the_rank_of_its_slots() -> None:
    """The example of vLLM's own documentation: 6 slots on 3 ranks, 4 experts, copies of some."""
    slots = np.array([[0, 1, 2, 3, 0, 1], [0, 2, 0, 1, 0, 3]])
    several = SEVERAL_RANKS
    assert rank_of_logical(slots, 4, 3).tolist() == [[several, several, 1, 1], [several, 1, 0, 2]]


def test_copies_on_one_rank_are_on_that_rank() -> None:
    """Where each token of an expert goes is known then, whatever copy takes it."""
    assert rank_of_logical(np.array([[2, 2, 0, 1]]), 3, 2).tolist() == [[1, 1, 0]]


def test_empty_slots_hold_no_expert() -> None:
    """A deployment that grows has slots without an expert; an expert without a slot is nowhere."""
    assert rank_of_logical(np.array([[1, -1, 0, -1]]), 3, 2).tolist() == [[1, 0, SEVERAL_RANKS]]


@settings(max_examples=40)
@given(st.data())
def test_any_arrangement_is_read_slot_by_slot(data: st.DataObject) -> None:
    """Against a walk over the slots."""
    ranks, each, experts = (data.draw(st.integers(1, 4)) for _ in range(3))
    slots = data.draw(st.lists(st.integers(-1, experts - 1), min_size=ranks * each,
                               max_size=ranks * each))  # fmt: skip
    holders: dict[int, set[int]] = {}
    for slot, expert in enumerate(slots):
        holders.setdefault(expert, set()).add(slot // each)
    wanted = [
        min(holders[expert]) if len(holders.get(expert, ())) == 1 else SEVERAL_RANKS
        for expert in range(experts)
    ]
    assert rank_of_logical(np.array([slots]), experts, ranks).tolist() == [wanted]


@pytest.mark.parametrize(
    ("strategy", "wanted"),
    [("linear", [0, 0, 0, 1, 1, 2, 2]), ("round_robin", [0, 1, 2, 0, 1, 2, 0])],
)
def test_settled_experts_are_shared_out_evenly(strategy: str, wanted: list[int]) -> None:
    """Seven experts on three ranks."""
    assert settled_ranks(7, 3, strategy).tolist() == wanted
