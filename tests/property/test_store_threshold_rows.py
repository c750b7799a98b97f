"""Threshold versions survive being stored, exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.shared_rows import LANE
from support.threshold_versions import (
    activation_row,
    head_row,
    plain,
    small_version,
    store_version,
)

from moescope.core.clock import ManualClock
from moescope.core.metrics import JUDGED_METRICS
from moescope.core.thresholds import (
    Activation,
    BaselineReference,
    LineKey,
    LineSource,
    MetricLines,
    PagingRule,
    Standing,
    ThresholdBook,
    ThresholdScope,
    ThresholdVersion,
)
from moescope.storage.control import (
    insert_rows,
    load_book,
    read_activations,
    read_versions,
)
from moescope.storage.schema import migrate
from moescope.storage.threshold_rows import line_rows, read_book

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS, EXPERTS = (1, 4, 9), 2
TEXT = st.text(max_size=4)
FINITE = st.floats(allow_nan=False)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A store file with all tables."""
    with duckdb.connect(tmp_path_factory.mktemp("thresholds") / "s.duckdb") as connection:
        migrate(connection, ManualClock())
        yield connection


@pytest.fixture
def connection(file: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
    """The same in a transaction that is rolled back."""
    file.begin()
    yield file
    file.rollback()


def per_layer(elements: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    """float64 [L]."""
    return arrays(np.float64, len(LAYERS), elements=elements)


LINES = st.builds(
    MetricLines,
    warn_low=per_layer(st.floats()), warn_high=per_layer(st.floats()),
    red_low=per_layer(st.floats()), red_high=per_layer(st.floats()), centre=per_layer(FINITE),
    spread=per_layer(st.floats(min_value=0, exclude_min=True, allow_nan=False)),
    standing=st.sampled_from(Standing), source=st.sampled_from(LineSource),
    units=st.integers(0, 2**40),
)  # fmt: skip
KEYS = st.builds(
    LineKey, TEXT, TEXT, st.integers(0, 2**50), st.integers(0, 2**50), TEXT, TEXT, TEXT
)
RULES = st.builds(
    PagingRule,
    phase=TEXT, kind=TEXT, size=st.integers(0, 9), stride=st.integers(0, 9), scope_kind=TEXT,
    family=TEXT, line=FINITE, needed=st.integers(1, 99), of=st.integers(1, 99),
    expected_per_day=FINITE, bound_per_day=FINITE, only_bound=st.booleans(),
)  # fmt: skip


@st.composite
def references(draw: st.DrawFn) -> BaselineReference:
    """Counts by scene."""
    scenes = draw(st.sets(TEXT, min_size=1, max_size=3))
    counts = arrays(np.int64, (len(LAYERS), EXPERTS), elements=st.integers(0, 2**62))
    return BaselineReference(
        scenes={scene: draw(counts) for scene in scenes},
        tokens={scene: draw(st.integers(0, 2**62)) for scene in scenes},
    )


@st.composite
def versions(draw: st.DrawFn) -> ThresholdVersion:
    """Any version."""
    metrics = st.sampled_from([metric.name for metric in JUDGED_METRICS])
    rules = draw(st.lists(RULES, max_size=3))
    return ThresholdVersion(
        version=draw(TEXT),
        scope=ThresholdScope(draw(TEXT), draw(TEXT), draw(TEXT), draw(TEXT), draw(FINITE)),
        layers=LAYERS, experts=EXPERTS, top_k=1,
        lines=draw(
            st.dictionaries(KEYS, st.dictionaries(metrics, LINES, min_size=1, max_size=2),
                            max_size=3)
        ),
        references=draw(st.dictionaries(TEXT, references(), max_size=2)),
        paging=tuple(rules),
    )  # fmt: skip


@settings(max_examples=30)
@given(version=versions(), other=versions())
def test_a_version_is_read_back_exactly(
    file: duckdb.DuckDBPyConnection, version: ThresholdVersion, other: ThresholdVersion
) -> None:
    """Every number bit by bit (NaN means no line), and nothing of another version."""
    other = replace(other, version=version.version + "x")
    file.begin()
    try:
        for each in (version, other):
            store_version(file, each, 1)
        found = read_versions(file)
    finally:
        file.rollback()
    assert {name: plain(each) for name, each in found.items()} == {
        each.version: plain(each) for each in (version, other)
    }


def test_a_missing_line_is_null(connection: duckdb.DuckDBPyConnection) -> None:
    """Whoever asks in SQL must not compare with NaN, which is greater than everything."""
    store_version(connection, small_version("t-1", LANE), 3)
    found = connection.execute(
        "SELECT layer, side, warn_low, warn_high, red_low, red_high, red_high_from, commit_id"
        " FROM thresholds ORDER BY layer"
    ).fetchall()
    assert found == [(layer, "high", None, 0.25, None, 0.5, None, 3) for layer in LANE.layers]


def test_a_layer_without_a_row_has_no_line(connection: duckdb.DuckDBPyConnection) -> None:
    """The weakest of what the layers say stands for all of them."""
    version = small_version("t-1", replace(LANE, layers=(0, 2, 5)))
    insert_rows(connection, "threshold_versions", [head_row(version)], 1)
    (first, _, last) = line_rows(version)
    last |= {"units": 5, "standing": "provisional", "source": "model"}
    insert_rows(connection, "thresholds", [last, first], 1)
    ((lines,),) = (each.values() for each in read_versions(connection)["t-1"].lines.values())
    assert lines.red_high.tolist()[::2] == [0.5, 0.5]
    assert np.isnan(lines.red_high[1])
    assert np.isnan(lines.spread[1])
    assert (lines.units, lines.standing, lines.source) == (5, "provisional", "model")


def test_of_two_activations_at_one_time_the_later_one_wins(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """Also when it was stored for an earlier event time than the one before it."""
    scope = ThresholdScope.of(LANE)
    for number, name in enumerate(("t-1", "t-2", "t-3")):
        store_version(connection, small_version(name, LANE, red_high=1 + number), 1)
    rows = [
        activation_row(3, scope, "t-1", 50), activation_row(1, scope, "t-2", 100),
        activation_row(2, scope, "t-3", 100), activation_row(4, scope, "", 200),
    ]  # fmt: skip
    insert_rows(connection, "threshold_activations", rows, 1)
    assert read_activations(connection) == {
        scope: (
            Activation(50, "t-1"), Activation(100, "t-2"), Activation(100, "t-3"),
            Activation(200, ""),
        )
    }  # fmt: skip
    book = ThresholdBook()
    load_book(book, connection)
    found = [book.at(LANE, time_us) for time_us in (49, 50, 99, 100, 199, 200)]
    assert [each and each.version for each in found] == [
        None, "t-1", "t-1", "t-3", "t-3", None,
    ]  # fmt: skip


def test_a_book_needs_only_what_was_activated(connection: duckdb.DuckDBPyConnection) -> None:
    """Drafts are not read, and no version is read twice: they never change."""
    scope = ThresholdScope.of(LANE)
    known = small_version("t-1", LANE)
    for name in ("t-1", "t-2", "t-3"):
        store_version(connection, small_version(name, LANE), 1)
    rows = [activation_row(1, scope, "t-1", 50), activation_row(2, scope, "t-3", 60)]
    insert_rows(connection, "threshold_activations", rows, 1)
    found, _ = read_book(connection, {"t-1": known})
    assert found.keys() == {"t-1", "t-3"}
    assert found["t-1"] is known
