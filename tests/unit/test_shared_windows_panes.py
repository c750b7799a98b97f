"""What panes of a shared window add up to."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.core.clock import NO_TIME
from moescope.core.emission import LaneKey, SharedDelta
from moescope.core.metrics import DROPS_UNKNOWN
from moescope.core.router_sums import LAGS, ROUTER_SUMS, LagSums, PositionCounts, SimilaritySums
from moescope.core.vocabulary import CloseReason, ScopeKind, WindowKind
from moescope.storage.shared import (
    ClosedWindow,
    Series,
    WindowShapes,
    WindowSpan,
    add_panes,
    group_windows,
)
from moescope.storage.shared.spans import starts_around

SECOND = 1_000_000
LANE = LaneKey("live", "m", "r", "model", "full", 1.0, 2, 1, (0, 5))
SERIES = Series(LANE, "decode", WindowKind.TIME, ScopeKind.ALL, "")


def pane(second: int, gaps: list[int] | None = None, **changes: object) -> SharedDelta:
    """A time pane with one row at layer 0, expert 1."""
    delta = SharedDelta(
        lane=LANE, phase="decode", kind=WindowKind.TIME, scope_kind=ScopeKind.ALL,
        scope_value="", pane=second * SECOND, counts=np.array([[0, 1], [0, 0]], np.uint32),
        dropped=np.zeros(2, np.uint64), seen=1, first_time_us=second * SECOND + 1,
        last_time_us=second * SECOND + 2, request_gaps=np.array(gaps or [], np.int64),
        scene_tokens={"chat": 1},
    )  # fmt: skip
    return replace(delta, **changes)  # type: ignore[arg-type]  # any field


def span(low: int, high: int) -> WindowSpan:
    """A time window over seconds."""
    size = (high - low) * SECOND
    return WindowSpan(SERIES, size, size, low * SECOND, high * SECOND)


@given(
    rows=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=40),
    low=st.integers(0, 25),
    size=st.integers(1, 12),
    longest=st.integers(12, 20),
)
def test_requests_are_counted_once_per_window(
    rows: list[tuple[int, int]], low: int, size: int, longest: int
) -> None:
    """Gaps add up over panes to the number of distinct requests, for any window."""
    seconds = sorted(set(rows))
    last: dict[int, int] = {}
    gaps: dict[int, list[int]] = {}
    for second, request in seconds:
        distance = second - last[request] if request in last else longest
        entry = gaps.setdefault(second, [0] * longest)
        entry[min(distance, longest) - 1] += 1
        last[request] = second
    inside = [second for second in gaps if low <= second < low + size]
    sums = add_panes(span(low, low + size), [pane(second, gaps[second]) for second in inside])
    distinct = {request for second, request in seconds if low <= second < low + size}
    assert sums.requests == len(distinct)


def test_sums_do_not_depend_on_the_order() -> None:
    """Partitions and commits may bring panes in any order."""
    panes = [
        pane(number, [number], lost=number, unknown_gap=number == 3, scene_tokens={str(number): 1})
        for number in range(5)
    ]
    shuffled = panes.copy()
    random.Random(0).shuffle(shuffled)
    first, second = add_panes(span(0, 5), panes), add_panes(span(0, 5), shuffled)
    assert first.counts.tolist() == second.counts.tolist() == [[0, 5], [0, 0]]
    for name in ("seen", "lost", "unknown_gap", "first_time_us", "last_time_us", "scene_tokens"):
        assert getattr(first, name) == getattr(second, name)
    assert (first.seen, first.lost, first.unknown_gap) == (5, 10, True)
    assert (first.first_time_us, first.last_time_us) == (1, 4 * SECOND + 2)


def test_times_are_absent_only_if_no_pane_has_one() -> None:
    """A pane without times does not hide those of others."""
    timeless = pane(0, first_time_us=NO_TIME, last_time_us=NO_TIME)
    assert add_panes(span(0, 5), [timeless]).first_time_us == NO_TIME
    sums = add_panes(span(0, 5), [pane(2), timeless])
    assert (sums.first_time_us, sums.last_time_us) == (2 * SECOND + 1, 2 * SECOND + 2)


def test_drops_are_unknown_as_soon_as_one_pane_does_not_tell() -> None:
    """A sum with a part missing is not a number of drops."""
    unknown = np.array([DROPS_UNKNOWN, 4], np.uint64)
    known = np.array([3, 5], np.uint64)
    sums = add_panes(span(0, 5), [pane(0, dropped=unknown), pane(1, dropped=known)])
    assert sums.dropped.tolist() == [DROPS_UNKNOWN, 9]


def test_scenes_add_their_tokens() -> None:
    """The mix of a window is that of its rows; a scene without rows is not in it."""
    panes = [pane(0, scene_tokens={"chat": 3, "code": 0}), pane(1, scene_tokens={"chat": 2})]
    assert add_panes(span(0, 5), panes).scene_tokens == {"chat": 5}


def test_router_sums_add_up() -> None:
    """A pane without them adds nothing; where none has them, nothing is known."""
    router = np.arange(2 * ROUTER_SUMS).reshape(2, ROUTER_SUMS)
    sums = add_panes(span(0, 5), [pane(0, router=router), pane(1), pane(2, router=router)])
    assert sums.router is not None
    assert sums.router.tolist() == (2 * router).tolist()
    assert router.tolist() == np.arange(2 * ROUTER_SUMS).reshape(2, ROUTER_SUMS).tolist()
    assert add_panes(span(0, 5), [pane(0), pane(1)]).router is None


@given(
    st.lists(st.dictionaries(st.integers(0, 63), st.integers(1, 9), max_size=8), max_size=5),
)
def test_sparse_positions_add_up(parts: list[dict[int, int]]) -> None:
    """Merging agrees with adding numbers by index, and stays ascending and distinct."""
    panes = []
    for part in parts:
        index = np.array(sorted(part), np.int64)
        count = np.array([part[at] for at in sorted(part)], np.int64)
        panes.append(pane(0, positions=PositionCounts(index, count)))
    expected: dict[int, int] = {}
    for part in parts:
        for at, number in part.items():
            expected[at] = expected.get(at, 0) + number
    merged = add_panes(span(0, 5), panes).positions
    assert (merged is None) == (not parts)
    if merged is not None:
        assert merged.index.tolist() == sorted(expected)
        assert merged.count.tolist() == [expected[at] for at in sorted(expected)]


def similar(start: int, size: int, requests: int) -> SharedDelta:
    """A similarity pane that a partition closed."""
    ones = np.ones(2, np.int64)
    sums = SimilaritySums(
        start * SECOND, size * SECOND, np.full((2, 2), requests), ones, requests * ones, 0 * ones
    )
    return pane(
        start + size - 1, seen=0, counts=np.zeros((2, 2), np.uint32), requests=7,
        first_time_us=NO_TIME, last_time_us=NO_TIME, scene_tokens={}, similarity=sums,
    )  # fmt: skip


def test_similarity_panes_of_partitions_add_and_of_other_times_stay_apart() -> None:
    """Each pane compares requests that ran at the same time."""
    sums = add_panes(span(0, 10), [similar(5, 5, 2), similar(0, 5, 3), similar(5, 5, 4)])
    assert [each.start_us for each in sums.similarity] == [0, 5 * SECOND]
    first, second = sums.similarity
    assert first.requests.tolist() == [3, 3]
    assert second.requests.tolist() == [6, 6]
    assert second.weighted.tolist() == [[6, 6], [6, 6]]
    assert second.squares.tolist() == [2, 2]
    assert (second.size_us, second.left_out.tolist()) == (5 * SECOND, [0, 0])


@pytest.mark.parametrize(
    ("low", "high", "inside"),
    [(5, 10, True), (4, 11, True), (6, 10, False), (5, 9, False), (9, 10, False)],
)
def test_a_similarity_pane_counts_where_it_lies_inside(low: int, high: int, inside: bool) -> None:
    """A window that holds only some of its seconds must not get its requests."""
    sums = add_panes(span(low, high), [pane(9), similar(5, 5, 2)])
    assert len(sums.similarity) == inside


def test_a_similarity_pane_is_no_row() -> None:
    """It brings no row, request, scene or time."""
    with_it, without = (
        add_panes(span(0, 5), panes) for panes in ([pane(3), similar(0, 5, 2)], [pane(3)])
    )
    names = (
        "seen", "requests", "first_time_us", "last_time_us", "scene_tokens", "lost", "unknown_gap",
    )  # fmt: skip
    for name in names:
        assert getattr(with_it, name) == getattr(without, name)


def test_lags_add_up() -> None:
    """Overlap and pairs per lag."""
    lags = LagSums(np.full((2, LAGS), 3), np.full((2, LAGS), 4))
    sums = add_panes(span(0, 5), [pane(0, lags=lags), pane(1), pane(2, lags=lags)])
    assert sums.lags is not None
    assert sums.lags.overlap.tolist() == [[6] * LAGS] * 2
    assert sums.lags.pairs.tolist() == [[8] * LAGS] * 2
    assert add_panes(span(0, 5), [pane(1)]).lags is None


def test_a_group_says_what_each_of_its_windows_knows() -> None:
    """Windows without router sums have zeros beside those with them; other scopes compare none."""
    router = np.ones((2, ROUTER_SUMS), np.int64)
    windows = [window(0), window(1, router=router)]
    (group,) = group_windows(windows, lambda *_: None)
    assert group.router is not None
    assert group.router.sum(axis=(1, 2)).tolist() == [0, 2 * ROUTER_SUMS]
    assert group.scene_tokens == [{"chat": 1}, {"chat": 1}]
    assert (group.positions, group.similarity, group.lags) == ([None] * 2, [[], []], [None] * 2)
    (bare,) = group_windows([window(0)], lambda *_: None)
    assert bare.router is None
    of_node = WindowSpan(SERIES._replace(scope_kind=ScopeKind.NODE), 1, 1, 0, 1)
    closed = ClosedWindow(of_node, add_panes(of_node, [pane(0)]), CloseReason.WATERMARK)
    (group,) = group_windows([closed], lambda *_: None)
    assert (len(group.positions), len(group.similarity), len(group.lags)) == (0, 0, 0)


@given(position=st.integers(-100, 1000), slides=st.integers(1, 5), stride=st.integers(1, 20))
def test_a_pane_is_in_every_window_around_it(position: int, slides: int, stride: int) -> None:
    """Windows start at multiples of the stride, also before zero."""
    size = slides * stride
    expected = [
        start for start in range(-2000, 2000)
        if start % stride == 0 and start <= position < start + size
    ]  # fmt: skip
    assert sorted(starts_around(position, size, stride)) == expected


def test_the_last_window_around_a_pane_decides_how_long_it_is_kept() -> None:
    """Of all shapes, the end that comes last."""
    shapes = WindowShapes(time=((SECOND, SECOND), (60 * SECOND, 20 * SECOND)), step=((50, 10),))
    assert shapes.last_end(WindowKind.TIME, 25 * SECOND) == 80 * SECOND
    assert shapes.last_end(WindowKind.STEP, 57) == 100
    assert shapes.last_end(WindowKind.TASK, 57) == 57


def window(low: int, **changes: object) -> ClosedWindow:
    """A closed window of one second with one row."""
    sums = add_panes(span(low, low + 1), [pane(low, [1], **changes)])
    return ClosedWindow(span(low, low + 1), sums, CloseReason.WATERMARK)


def test_coverage_of_shared_windows() -> None:
    """Expected is what was seen and what was lost; a loss makes a window incomplete."""
    windows = [window(2), window(0, lost=3), window(1, unknown_gap=True)]
    (group,) = group_windows(windows, lambda *_: None)
    assert group.start.tolist() == [0, SECOND, 2 * SECOND]
    assert group.expected.tolist() == [4, 1, 1]
    assert group.complete.tolist() == [False, False, True]
    assert group.unknown_gap.tolist() == [False, True, False]
    assert group.scene == ["chat"] * 3


@pytest.mark.parametrize(
    ("kind", "close_time", "start"),
    [
        (WindowKind.TIME, 8 * SECOND, 7 * SECOND),
        (WindowKind.TASK, 7 * SECOND + 2, 7 * SECOND + 1),
        (WindowKind.STEP, 7 * SECOND + 2, 7 * SECOND),
    ],
)
def test_starts_and_close_times(kind: WindowKind, close_time: int, start: int) -> None:
    """A time window is dated by its end, the others by their last row."""
    series = SERIES._replace(kind=kind)
    plan = WindowSpan(series, SECOND, SECOND, 7 * SECOND, 8 * SECOND)
    sums = add_panes(plan, [pane(7)])
    closed = ClosedWindow(plan, sums, CloseReason.SEALED)
    assert (closed.close_time_us, closed.start) == (close_time, start)
