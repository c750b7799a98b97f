from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from support.expected import expected_outcome, expected_panes
from support.rolled_up import roll_up
from support.streams import NATURAL, Plan, cut_stream, make_stream, source_records

from moescope.processors.config import WindowConfig

if TYPE_CHECKING:
    from oracles.windows_plain import Record
    from support.rolled_up import Outcome

CONFIG = WindowConfig(
    token=((4, 4), (8, 8)), time=((1_000_000, 1_000_000),), step=((2, 2),), row_budget=1000
)
SECOND = 1_000_000
HEAP_US = 20_000
"""Between two records of a heap that waited for the broker."""


def with_outage(records: list[Record], begins: int, ends: int, later_us: int) -> list[Record]:
    """Records as a topic gets them that took none between two times.

    What waited arrives at the end, the first node's at once and the others' some time later.
    """
    first = records[0].node
    arrived = []
    heaps: dict[str, int] = {}
    for place, record in enumerate(records):
        arrival = ready = record.watermark
        if begins <= ready < ends + (0 if record.node == first else later_us):
            heap = heaps.get(record.node, ends + (0 if record.node == first else later_us))
            heaps[record.node] = heap + HEAP_US
            arrival = heap
        # A node's own records stay in order.
        arrived.append((max(arrival, heaps.get(record.node, 0)), place, record))
    return [record._replace(arrived=arrival) for arrival, _, record in sorted(arrived)]


@given(st.integers(0, 2**16), st.integers(40, 400), st.integers(0, 8), st.integers(0, 2**32))
@settings(max_examples=10)
def test_what_waited_for_a_broker_is_in_its_windows(
    seed: int, away_s: int, later_s: int, chance: int
) -> None:
    """After an outage nodes of one partition come back one by one, and nobody's rows are late."""
    stream = make_stream(
        Plan(seed=seed, nodes=3, passes=60, long_gaps=False, heartbeat_s=1.0, odd_rows=False)
    )
    records = [record for record in cut_stream(stream, NATURAL) if record.readable]
    begins = records[len(records) // 4].watermark
    topic = with_outage(records, begins, begins + away_s * SECOND, later_s * SECOND)
    steady = roll_up(source_records([r._replace(arrived=r.watermark) for r in records]), CONFIG)
    rng = Random(chance)
    numbers = range(3 * len(records))
    found = roll_up(
        source_records(topic),
        CONFIG,
        commits={number for number in numbers if rng.random() < 0.3},
        restarts={number for number in numbers if rng.random() < 0.05},
    )
    assert _late_rows(found) == _late_rows(steady)
    assert found.token == steady.token
    assert expected_panes(found.panes, CONFIG) == expected_panes(steady.panes, CONFIG)


def _late_rows(outcome: Outcome) -> int:
    return sum(account.late_rows for account in outcome.accounts.values())


@given(st.integers(0, 2**16), st.integers(5, 90), st.integers(0, 60))
@settings(max_examples=10)
def test_waiting_for_nodes_equals_the_plain_rule(seed: int, away_s: int, later_s: int) -> None:
    """Who is waited for and who is set aside is what the plain-Python oracle says."""
    stream = make_stream(Plan(seed=seed, nodes=3, passes=60, lag_s=seed % 40))
    records = cut_stream(stream, NATURAL)
    begins = records[len(records) // 4].watermark
    topic = with_outage(records, begins, begins + away_s * SECOND, later_s * SECOND)
    found, expected = roll_up(source_records(topic), CONFIG), expected_outcome(topic, CONFIG)
    assert found.token == expected.token
    assert expected_panes(found.panes, CONFIG) == expected.panes
