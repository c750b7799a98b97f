"""Levels of window rows from what the thresholds said of each window and layer."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shared_rows import EXPERTS, LANE, LAYERS

from moescope.core.emission import FinishedWindows, Judgement, WindowGroup
from moescope.core.metrics import JUDGED_METRICS, METRIC_NAMES
from moescope.core.vocabulary import CloseReason, ScopeKind, WindowKind
from moescope.storage.levels import COVERED, level_columns

GINI, MIX = "gini", "mix_shift"
NAMES = [metric.name for metric in JUDGED_METRICS]
ALERTING = {metric.name for metric in JUDGED_METRICS if metric.alerts}


def group(windows: int, **changes: object) -> WindowGroup:
    """Complete time windows."""
    ones = np.ones(windows, np.int64)
    values: dict[str, Any] = {
        "lane": LANE, "phase": "decode", "kind": WindowKind.TIME, "size": 10, "stride": 10,
        "scope_kind": ScopeKind.ALL, "scope_value": "", "start": np.arange(windows) * 10,
        "first_time_us": ones, "last_time_us": ones, "close_time_us": ones,
        "request": [""] * windows, "task": [""] * windows, "scene": [""] * windows,
        "node": [""] * windows, "seen": 100 * ones, "expected": 100 * ones, "lost": 0 * ones,
        "unknown_gap": ones == 0, "requests": ones,
        "close_reason": [CloseReason.WATERMARK] * windows, "complete": ones == 1,
        "weight": np.ones(windows), "row_version": ones.astype(np.int32),
        "counts": np.zeros((windows, len(LAYERS), EXPERTS), np.uint64),
        "dropped": np.zeros((windows, len(LAYERS)), np.uint64),
    }  # fmt: skip
    return WindowGroup(**{**values, **changes})


def finished(of: WindowGroup, judgement: Judgement | None) -> FinishedWindows:
    """The group with a judgement."""
    shape = (len(of), len(LAYERS), len(METRIC_NAMES))
    tokens = np.repeat(of.expected[:, None], len(LAYERS), axis=1)
    return FinishedWindows(group=of, values=np.zeros(shape), tokens=tokens, judgement=judgement)


def bits(*names: str) -> int:
    """The metrics as a bit mask."""
    return sum(1 << NAMES.index(name) for name in names)


def judgement(
    version: list[str], judged: list[list[int]], warn: list[list[int]], red: list[list[int]]
) -> Judgement:
    """One of bit masks per window and layer."""
    masks = {
        name: np.array(values, np.uint64)
        for name, values in (("judged", judged), ("warn", warn), ("red", red))
    }
    return Judgement(version=version, exceedances={}, **masks)


def rows(parts: list[tuple[FinishedWindows, Any]]) -> list[tuple[object, ...]]:
    """Level, reason, warn, red and version of each row."""
    columns = level_columns([(each, np.array(mask, bool)) for each, mask in parts], 0.9)
    return list(zip(*(column.to_pylist() for column in columns.values()), strict=True))


def test_each_layer_has_its_own_level() -> None:
    """Healthy, warn and red rows, with the metrics that made them so."""
    all_of = bits(*NAMES)
    said = judgement(
        ["t-1", "t-2"],
        judged=[[all_of, all_of], [all_of, bits(GINI)]],
        warn=[[0, bits(GINI)], [bits(GINI, "drop_rate"), bits(GINI)]],
        red=[[0, 0], [bits("drop_rate"), bits(GINI)]],
    )
    both = [name for name in NAMES if name in {GINI, "drop_rate"}]
    assert rows([(finished(group(2), said), [True, True])]) == [
        ("healthy", None, [], [], "t-1"),
        ("warn", None, [GINI], [], "t-1"),
        ("red", None, both, ["drop_rate"], "t-2"),
        ("red", None, [GINI], [GINI], "t-2"),
    ]


def test_what_informs_only_never_changes_the_level() -> None:
    """A shift of the traffic mix is shown, and explains; it is no fault."""
    said = judgement(
        ["t-1", "t-1"],
        judged=[[bits(GINI, MIX)] * 2, [bits(MIX)] * 2],
        warn=[[bits(MIX)] * 2, [bits(MIX)] * 2],
        red=[[bits(MIX)] * 2, [0, 0]],
    )
    assert rows([(finished(group(2), said), [True, True])])[::2] == [
        ("healthy", None, [MIX], [MIX], "t-1"),
        ("insufficient", "no line for this volume or scene", [MIX], [], "t-1"),
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unknown_gap": np.array([True])}, "coverage unknown"),
        ({"seen": np.array([89])}, "coverage"),
        ({"kind": WindowKind.TOKEN, "complete": np.array([False])}, "partial"),
    ],
    ids=["gap", "coverage", "partial"],
)
def test_a_window_that_says_too_little_is_never_red(changes: dict[str, Any], reason: str) -> None:
    """What is missing may be what made it look so; the metrics are shown all the same."""
    said = judgement(["t-1"], [[bits(GINI)] * 2], [[bits(GINI)] * 2], [[bits(GINI)] * 2])
    assert rows([(finished(group(1, **changes), said), [True])]) == [
        ("insufficient", reason, [GINI], [GINI], "t-1")
    ] * len(LAYERS)


@pytest.mark.parametrize("kind", [WindowKind.TOKEN, WindowKind.TIME])
def test_rows_and_windows_agree_on_what_saw_enough(kind: WindowKind) -> None:
    """Queries find the very windows that paging reads, whichever threshold is missing."""
    seen = np.array([100, 99, 90, 89, 0, 100, 100])
    of = group(
        len(seen), kind=kind, seen=seen, lost=100 - seen, complete=seen == 100,
        unknown_gap=(np.arange(len(seen)) == 5) & (kind is WindowKind.TIME),
    )  # fmt: skip
    columns = level_columns([(finished(of, None), np.ones(len(seen), bool))], 0.9)
    table = pa.table({**columns, "place": np.arange(len(seen)).repeat(len(LAYERS))})
    with duckdb.connect() as connection:
        connection.register("windows", table)
        found = connection.execute(
            f"SELECT DISTINCT place FROM windows WHERE {COVERED} ORDER BY ALL"
        ).fetchall()
    expected = [0, 5, 6] if kind is WindowKind.TOKEN else [0, 1, 2, 6]
    assert [place for (place,) in found] == expected
    assert np.flatnonzero(of.is_covered(0.9)).tolist() == expected


def test_a_layer_with_too_few_sound_rows_is_not_judged() -> None:
    """Windows that saw everything say nothing of a layer at which most rows were suspicious."""
    said = judgement(["t-1"] * 3, [[bits(GINI)] * 2] * 3, [[0, 0]] * 3, [[0, 0]] * 3)
    windows = finished(group(3, seen=np.array([100, 100, 80])), said)
    windows.tokens[:] = [[100, 89], [90, 0], [80, 1]]
    assert [row[:2] for row in rows([(windows, [True] * 3)])] == [
        ("healthy", None),
        ("insufficient", "suspicious rows"),
        ("healthy", None),
        ("insufficient", "suspicious rows"),
        ("insufficient", "coverage"),
        ("insufficient", "coverage"),
    ]


def test_windows_without_thresholds_lie_beside_those_with_them() -> None:
    """Only kept windows have rows; a version comes into force within a group."""
    said = judgement(["", "t-1", "t-1"], [[0, 0], [bits(GINI)] * 2, [bits(GINI)] * 2],
                     [[0, 0]] * 3, [[0, 0]] * 3)  # fmt: skip
    parts = [(finished(group(1), None), [True]), (finished(group(3), said), [True, False, True])]
    nothing: tuple[object, ...] = ("insufficient", "no calibrated threshold", [], [], None)
    assert rows(parts)[::2] == [nothing, nothing, ("healthy", None, [], [], "t-1")]


@settings(max_examples=30)
@given(st.lists(st.sets(st.sampled_from(NAMES)), min_size=4, max_size=4))
def test_lists_name_exactly_the_bits(sets: list[set[str]]) -> None:
    """Every metric has its own bit, in the order of the registry."""
    masks = [[bits(*sets[0]), bits(*sets[1])], [bits(*sets[2]), bits(*sets[3])]]
    said = judgement(["t-1", "t-1"], masks, masks, masks)
    for found, expected in zip(rows([(finished(group(2), said), [True, True])]), sets, strict=True):
        level, reason, warn, red, _ = found
        assert warn == red == [name for name in NAMES if name in expected]
        judged = bool(expected & ALERTING)
        assert (level, reason is None) == (("red", True) if judged else ("insufficient", False))
