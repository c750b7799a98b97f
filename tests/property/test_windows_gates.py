"""Suspicious rows and layers are kept out of every window, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.windows_plain import CONTEXT, DECODE, SECOND, Lane, Record, Row
from support.batches import make_heartbeat
from support.expected import expected_outcome, expected_panes
from support.rolled_up import roll_up
from support.streams import START_US, Cut, Item, cut_stream, source_records

from moescope.core.wire import encode_batch
from moescope.processors.config import WindowConfig
from moescope.processors.nodes import SEQUENCE_WINDOW
from moescope.processors.sources.protocol import SourceRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.rolled_up import Outcome

CONFIG = WindowConfig(token=((16, 16), (32, 16)), time=((SECOND, SECOND),), step=(), lag_ratio=1.0)


def _rows(ids: Sequence[tuple[tuple[int, ...], ...]], context: int = 0) -> tuple[Row, ...]:
    return tuple(
        Row(
            request="request",
            task="task",
            scene="chat",
            phase=DECODE,
            position=position,
            time=START_US + position * 1_000,
            step=None,
            flags=CONTEXT if position < context else 0,
            ids=each,
            starts=(0, 0, -1, -1, -1, -1),
        )
        for position, each in enumerate(ids)
    )


def _check(record: Record) -> Outcome:
    found = roll_up(source_records([record]), CONFIG)
    expected = expected_outcome([record], CONFIG)
    assert found.token == expected.token
    assert expected_panes(found.panes, CONFIG) == expected.panes
    assert found.lags == expected.lags
    assert found.accounts[0].suspicious_pairs == expected.accounts[0][-1]
    return found


@given(st.integers(30, 100), st.integers(0, 3), st.integers(0, 40))
@settings(max_examples=25)
def test_identical_rows_count_up_to_the_thirty_second(run: int, context: int, before: int) -> None:
    """A long run of equal rows is cut off, at the same row wherever it starts."""
    lane = Lane("moe", "r1", 8, 2, 2)
    varied = [((n % 7, 7), (7, n % 6)) for n in range(before)]
    ids = [*varied, *([((1, 2), (3, 4))] * run)]
    found = _check(
        Record("node", 0, lane, START_US + SECOND, _rows(ids, context), appended=START_US)
    )
    equal_rows = run - max(0, context - before)
    assert found.accounts[0].suspicious_pairs == 2 * max(0, equal_rows - 32)
    # These rows are generated, and a generation may loop by itself.
    assert ("repeated_generation" in found.accounts[0].reasons) is (equal_rows > 32)


@pytest.mark.parametrize("context", [True, False])
def test_identical_run_goes_on_where_context_rows_join_batches(context: bool) -> None:
    """A run of 40 equal rows in batches of 10 is found where the last rows are repeated."""
    lane = Lane("moe", "r1", 8, 2, 2)
    items = [
        Item("node", lane, START_US, row._replace(time=START_US))
        for row in _rows([((1, 2), (3, 4))] * 40)
    ]
    records = cut_stream(items, Cut(10, context=context))
    found = roll_up(source_records(records), CONFIG, commits={2}, restarts={3})
    expected = expected_outcome(records, CONFIG)
    assert found.token == expected.token
    assert found.lags == expected.lags
    assert sum(account.suspicious_pairs for account in found.accounts.values()) == 16 * context


@given(st.integers(60, 70), st.integers(0, 2), st.booleans())
@settings(max_examples=25)
def test_all_zero_layer_is_kept_out(rows: int, context: int, one_other: bool) -> None:
    """With k = 1 a layer of zeros in 64 or more rows is not believed; one other id redeems it."""
    lane = Lane("moe", "r1", 4, 1, 2)
    ids = [((n % 4,), (0,)) for n in range(rows)]
    if one_other:
        ids[-1] = ((3,), (2,))
    found = _check(
        Record("node", 0, lane, START_US + SECOND, _rows(ids, context), appended=START_US)
    )
    doubted = rows >= 64 and not one_other
    assert found.accounts[0].suspicious_pairs == (rows - context if doubted else 0)
    assert found.accounts[0].verdict == ("suspicious" if doubted else "accepted")


def test_batch_older_than_the_window_of_numbers_is_a_dead_letter() -> None:
    """A number that is too far back to know is kept apart, one just inside is still a duplicate."""
    numbers = [0, 1, SEQUENCE_WINDOW, 1, 0]
    found = roll_up(
        [
            SourceRecord(offset, START_US, encode_batch(make_heartbeat(number)))
            for offset, number in enumerate(numbers)
        ],
        CONFIG,
    )
    assert found.dead_letters == [4]
    assert found.accounts[3].verdict == "duplicate"
