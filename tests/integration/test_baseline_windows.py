from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from support.sample_store import MIDNIGHT, MIDNIGHT_US, SampleStore

from moescope.core.errors import InputError, InsufficientDataError
from moescope.core.thresholds import ThresholdScope
from moescope.jobs.baselines import Baseline, Span, fired_spans, model_shape, read_windows
from moescope.jobs.reports.baseline_selection import baseline_windows
from moescope.jobs.reports.rows import Head

if TYPE_CHECKING:
    from pathlib import Path

SCOPE = ThresholdScope("m", "", "", "", 0.0)


@pytest.fixture
def store(tmp_path: Path) -> SampleStore:
    """A store with one lane of one layer."""
    made = SampleStore.create(tmp_path)
    made.add("lanes", model="m", experts=2, top_k=1, layers=[0], commit_id=1)
    return made


def add_window(store: SampleStore, start: int, **values: object) -> None:
    """One complete token window of a request of its own."""
    when = MIDNIGHT + timedelta(seconds=start)
    base: dict[str, object] = {
        "window_kind": "token", "phase": "decode", "size": 8, "stride": 8, "complete": True,
        "coverage": 1.0, "first_time": when, "last_time": when, "request": f"r{start}",
        "scene": "a", "scenes": ["a"], "scene_tokens": [8], "node": "n1",
    }  # fmt: skip
    store.add_window(start, 1, **base | values)


def requests(store: SampleStore, baseline: Baseline, *without: Span) -> list[str]:
    """Requests of the windows that a baseline selects."""
    cursor = store.cursor()
    shape = model_shape(cursor, baseline, SCOPE)
    found = read_windows(cursor, baseline, shape, minimum_coverage=0.9, without=without)
    return sorted(request for windows in found for request in windows.request.tolist())


def reported(store: SampleStore, baseline: Baseline) -> list[str]:
    """Requests of the windows that a report takes for those of a baseline."""
    head = Head(
        "t-1", *SCOPE, layers=[0], experts=2, top_k=1, baseline="b", baseline_version=1,
        created_at=None, author="", reason="", status="draft", summary_json="{}",
    )  # fmt: skip
    cursor = store.cursor()
    chosen = baseline_windows(cursor, head, baseline, 0.9)
    found = cursor.execute(
        f"SELECT w.request FROM windows w WHERE {chosen.condition}", chosen.parameters
    )
    return sorted(request for (request,) in found.fetchall())


def test_a_report_speaks_of_the_windows_that_calibration_read(store: SampleStore) -> None:
    """What would have fired in a baseline is counted where its lines come from."""
    time: dict[str, object] = {"window_kind": "time", "size": 8_000_000, "stride": 8_000_000}
    windows: list[dict[str, object]] = [
        {}, {"node": "n2"}, {"complete": False}, {"coverage": 0.5}, {"coverage": None},
        {"stride": 4}, time, time | {"complete": False, "coverage": 0.9},
        time | {"complete": False, "coverage": 0.89}, time | {"coverage": None},
        {"scene": "", "scenes": ["a", "b"], "scene_tokens": [4, 4]},
    ]  # fmt: skip
    for start, values in enumerate(windows):
        add_window(store, start, **values)
    second = 1_000_000
    span = Span(MIDNIGHT_US + second, MIDNIGHT_US + 7 * second)
    for baseline, read in (
        (Baseline(name="b"), ["r0", "r1", "r10", "r6", "r7"]),
        (Baseline(name="b", spans=(span,)), ["r1", "r6"]),
        (Baseline(name="b", without_spans=(span,)), ["r0", "r10", "r7"]),
        (Baseline(name="b", scenes=("a",)), ["r0", "r1", "r6", "r7"]),
        (Baseline(name="b", nodes=("n2",)), ["r1"]),
        (Baseline(name="b", without_nodes=("n1",)), ["r1"]),
    ):
        assert requests(store, baseline) == read
        assert reported(store, baseline) == read


def test_only_whole_disjoint_windows_of_health_are_read(store: SampleStore) -> None:
    """Partial, thin, overlapping and training windows say nothing about a healthy window."""
    add_window(store, 0)
    add_window(store, 1, complete=False)
    add_window(store, 2, coverage=0.5)
    add_window(store, 3, coverage=None)
    add_window(store, 4, stride=4)
    add_window(store, 5, phase="train")
    assert requests(store, Baseline(name="b")) == ["r0"]


def test_a_few_lost_rows_leave_no_time_window_out(store: SampleStore) -> None:
    """A node that loses a row now and then has a baseline all the same, of what paging reads."""
    for start, coverage in enumerate((1.0, 0.9, 0.89, None)):
        add_window(
            store, start, window_kind="time", size=8_000_000, stride=8_000_000,
            complete=coverage == 1.0, coverage=coverage,
        )  # fmt: skip
    assert requests(store, Baseline(name="b")) == ["r0", "r1"]


def test_spans_scenes_and_nodes_select(store: SampleStore) -> None:
    """A window belongs when all of it is inside; mixed scenes are of no one scene."""
    for start in range(4):
        add_window(store, start, node=f"n{start}")
    add_window(store, 9, scene="", scenes=["a", "b"], scene_tokens=[4, 4])
    second = 1_000_000
    span = Span(MIDNIGHT_US + second, MIDNIGHT_US + 3 * second)
    assert requests(store, Baseline(name="b", spans=(span,))) == ["r1", "r2"]
    assert requests(store, Baseline(name="b", without_spans=(span,))) == ["r0", "r3", "r9"]
    assert requests(store, Baseline(name="b"), span) == ["r0", "r3", "r9"]
    assert requests(store, Baseline(name="b", scenes=("a",))) == ["r0", "r1", "r2", "r3"]
    assert requests(store, Baseline(name="b", nodes=("n2",))) == ["r2"]
    assert requests(store, Baseline(name="b", without_nodes=("n1",))) == ["r0", "r2", "r3"]


def test_sampled_rows_count_as_their_weights_say(store: SampleStore) -> None:
    """Red windows were all kept, each for itself; leaving them out would lower every line."""
    add_window(store, 0, weight=4.0)
    add_window(store, 1, weight=1.0, level="red")
    cursor = store.cursor()
    shape = model_shape(cursor, Baseline(name="b"), SCOPE)
    (found,) = read_windows(cursor, Baseline(name="b"), shape, minimum_coverage=0.9)
    assert dict(zip(found.request, found.weight, strict=True)) == {"r0": 4.0, "r1": 1.0}


def test_layers_with_too_few_sound_rows_lend_no_values(store: SampleStore) -> None:
    """Of eight rows seven were suspicious: what one token looks like makes no line."""
    for start, tokens in enumerate((8, 1)):
        add_window(store, start, tokens=tokens, seen=8, expected=8, gini=0.25)
    cursor = store.cursor()
    shape = model_shape(cursor, Baseline(name="b"), SCOPE)
    (found,) = read_windows(cursor, Baseline(name="b"), shape, minimum_coverage=0.9)
    ginis = dict(zip(found.request, found.values["gini"].tolist(), strict=True))
    assert ginis == {"r0": [0.25], "r1": [pytest.approx(float("nan"), nan_ok=True)]}


def test_times_of_alerts_that_fired_are_known(store: SampleStore) -> None:
    """What paged was no health; what was pending only may have been."""
    at = {
        name: MIDNIGHT + timedelta(seconds=second)
        for name, second in (("began_at", 10), ("last_slot", 30), ("fired_at", 20))
    }
    store.add("alerts", alert="x", resolved_at=MIDNIGHT + timedelta(seconds=40), **at)
    store.add("alerts", alert="y", resolved_at=None, **at)
    store.add("alerts", alert="z", resolved_at=None, **at | {"fired_at": None})
    spans = [
        (begin - MIDNIGHT_US, end - MIDNIGHT_US) for begin, end in fired_spans(store.cursor(), [""])
    ]
    assert spans == [(10_000_000, 30_000_000), (10_000_000, 40_000_000)]
    assert fired_spans(store.cursor(), ["other"]) == ()


def test_what_selects_nothing_is_told(store: SampleStore) -> None:
    """A name that does not exist is insufficient data, a span that ends first is wrong use."""
    with pytest.raises(InsufficientDataError, match="no windows of m"):
        requests(store, Baseline(name="b", models=("m",)))
    with pytest.raises(InputError, match="ends before it begins"):
        Baseline(name="b", spans=(Span(2, 1),))
