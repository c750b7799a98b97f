"""In which order a benchmark's sides take turns, and the passes of its made-up traffic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from benchmarks.harness import Side, take_turns
from benchmarks.streams import dense_stream

from moescope.core.vocabulary import RowFlag

REPETITIONS = 5


def test_sides_take_turns_in_an_order_drawn_anew() -> None:
    """Each runs once a repetition, right after it was prepared, and not always in one order."""
    done: list[str] = []

    def side(name: str) -> Side:
        return Side(name, 1, lambda: done.append(name), lambda: done.append(f"prepare {name}"))

    seconds = take_turns([side("a"), side("b"), side("c")], REPETITIONS)
    assert {name: len(each) for name, each in seconds.items()} == dict.fromkeys("abc", REPETITIONS)
    assert done[::2] == [f"prepare {name}" for name in done[1::2]]
    turns = [tuple(done[first : first + 6][1::2]) for first in range(0, len(done), 6)]
    assert len(turns) == REPETITIONS + 1  # one that is not counted
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) > 1


def test_a_pass_has_a_row_of_each_request_at_one_time() -> None:
    """Otherwise the cost of pass ids would be that of other passes than the page describes."""
    stream = replace(dense_stream(quick=True, context=2), passes=True)
    seen: set[int] = set()
    for index in range(3):
        batch = stream.batch(index)
        tokens = batch.tokens
        assert tokens is not None
        assert tokens.pass_id is not None
        assert tokens.event_time_us is not None
        new = tokens.flags & RowFlag.CONTEXT == 0
        ids = np.unique(tokens.pass_id[new])
        assert len(ids) == stream.tokens_per_request
        for pass_id in ids:
            rows = new & (tokens.pass_id == pass_id)
            assert sorted(tokens.request[rows]) == list(range(stream.requests_per_batch))
            assert len(np.unique(tokens.event_time_us[rows])) == 1
        assert tokens.event_time_us.max() < batch.header.watermark_us  # so none stays open
        assert seen.isdisjoint(ids.tolist())
        seen |= set(ids.tolist())
