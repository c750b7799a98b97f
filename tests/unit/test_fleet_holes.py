"""How the fault runs tell windows that have to be marked from those that must not be."""

from __future__ import annotations

import pytest
from oracles.windows_plain import Lane, Record, Row
from support.fleet_engine import REQUESTS, EngineReport, Step
from support.fleet_holes import Holes, Seconds, holes_of, seconds_of_losses
from support.fleet_topic import Place
from support.streams import encode

SECOND = 1_000_000
FULL = 4 * REQUESTS


def _report(*seconds: int) -> EngineReport:
    """Four steps in each of some seconds."""
    steps = tuple(Step(second + part / 4, 20.0, 10.0) for second in seconds for part in range(4))
    return EngineReport(len(steps) * REQUESTS, 0, steps)


def _judge(
    delivered: dict[tuple[str, int], int], *, claims: bool, told: frozenset[int] = frozenset()
) -> Holes:
    """The second 11 of two nodes."""
    seconds = Seconds({"a": _report(10, 11, 12), "b": _report(10, 11, 12)}, delivered)
    (found,) = holes_of([(SECOND, 11 * SECOND, claims)], seconds, set(told))
    return found


BOTH = {("a", 11): FULL, ("b", 11): FULL}
SHORT = {("a", 11): FULL}


def test_missing_rows_of_one_node_have_to_be_said() -> None:
    """Rows of the other node do not make up for them."""
    assert _judge(SHORT, claims=True) == Holes(1, 1, 1, 1, 0, 0)
    assert _judge(SHORT, claims=False) == Holes(1, 1, 1, 0, 0, 0)


def test_one_step_may_be_counted_a_second_later() -> None:
    """The clock is read before the call, and the row has its time from within."""
    for off in (-REQUESTS, REQUESTS):
        delivered = {**BOTH, ("a", 11): FULL + off}
        assert _judge(delivered, claims=True) == Holes(1, 1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("told", "expected"), [({11}, Holes(1, 1, 0, 0, 1, 0)), ({12}, Holes(1, 1, 0, 0, 0, 1))]
)
def test_mark_without_missing_rows_needs_a_loss_beside(told: set[int], expected: Holes) -> None:
    """Otherwise it is a false alarm."""
    assert _judge(BOTH, claims=False, told=frozenset(told)) == expected


def test_seconds_without_any_row_are_found() -> None:
    """By node: the other one may have rows in them."""
    seconds = Seconds({"a": _report(10, 11), "b": _report(10, 11)}, {**SHORT, ("b", 10): FULL})
    assert seconds.empty() == {("a", 10), ("b", 11)}


def test_hole_of_whole_seconds_counts_in_longer_windows() -> None:
    """A window of five seconds is short when one of them is missing whole."""
    report = _report(10, 11, 12, 13, 14)
    seconds = Seconds({"a": report}, {("a", second): FULL for second in (10, 11, 13, 14)})
    assert holes_of([(5 * SECOND, 10 * SECOND, True)], seconds, set()) == (
        Holes(5, 1, 1, 1, 0, 0),
    )  # fmt: skip


def test_losses_reach_from_the_last_watermark_to_the_first_row() -> None:
    """And to rows that are repeated from before it; records that come again tell nothing new."""
    first, second = (_record(0, 12_100_000, 11_500_000), _record(2, 16_000_000, 15_100_000))
    repeated = _record(2, 16_000_000, 11_900_000)
    assert seconds_of_losses({0: [first, second, second]}) == {12, 13, 14, 15}
    assert seconds_of_losses({0: [first, repeated]}) == {11}
    assert seconds_of_losses({0: [first, _record(1, 16_000_000, 15_100_000)]}) == set()


def _record(sequence: int, watermark: int, time: int) -> Place:
    """A batch of one row."""
    row = Row("r", "t", "s", 1, 0, time, None, 0, ids=((0,),), starts=(0,) * 6)
    record = Record("n", sequence, Lane("m", "r1", 4, 1, 1), watermark, (row,))
    return Place(0, sequence, b"n", encode(record), 0, 0)
