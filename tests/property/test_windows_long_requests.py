"""Requests that are long enough for every lag, many sampled positions and request similarity."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.windows_plain import DECODE, LAST_OF_REQUEST, PREFILL, SECOND, Lane, Row
from support.expected import expected_outcome
from support.rolled_up import roll_up
from support.streams import START_US, Cut, Item, cut_stream, source_records

from moescope.processors.config import WindowConfig

CONFIG = WindowConfig(
    token=((64, 64),), time=((SECOND, SECOND),), step=(), lag_ratio=1.0, similarity_requests=3
)


def _stream(rng: Random, lane: Lane) -> list[Item]:
    """A few requests side by side, whose routing repeats itself, with a hole here and there."""
    items = []
    for number in range(rng.randrange(2, 5)):
        prompt, end = rng.choice([0, 40, 70]), rng.randrange(80, 180)
        time = START_US + rng.randrange(SECOND)
        pattern = [
            tuple(tuple(rng.sample(range(lane.experts), lane.top_k)) for _ in range(lane.layers))
            for _ in range(rng.choice([3, 7, 50]))
        ]
        hole = rng.randrange(end)
        for position in range(end):
            time += rng.choice([0, 5_000, 40_000])
            if position == hole:
                continue
            row = Row(
                request=f"request-{number}",
                task="task",
                scene="chat",
                phase=PREFILL if position < prompt else DECODE,
                position=position,
                time=time,
                step=None,
                flags=LAST_OF_REQUEST if position == end - 1 and number % 2 else 0,
                ids=pattern[position % len(pattern)],
                starts=(0, prompt, -1, -1, -1, -1),
                ranked=True,
            )
            items.append(Item("node", lane, time, row))
    return sorted(items, key=lambda item: item.time)


@given(st.integers(0, 2**32), st.sampled_from([8, 70]), st.sampled_from([1, 2]))
@settings(max_examples=5)
def test_long_requests_equal_the_plain_roll_up(seed: int, experts: int, top_k: int) -> None:
    """Positions, lags and similarity are the oracle's, in any batches and over restarts."""
    rng = Random(seed)
    items = _stream(rng, Lane("moe", "r1", experts, top_k, 2))
    for cut in (Cut(50, 400_000), Cut(9, 100_000)):
        records = cut_stream(items, cut)
        found = roll_up(source_records(records), CONFIG)
        expected = expected_outcome(records, CONFIG)
        assert found.token == expected.token
        assert found.positions == expected.positions
        assert found.lags == expected.lags
        assert found.similarity == expected.similarity
        numbers = range(3 * len(records))
        commits, restarts = ({n for n in numbers if rng.random() < 0.2} for _ in range(2))
        again = roll_up(source_records(records), CONFIG, commits=commits, restarts=restarts)
        assert again == found
