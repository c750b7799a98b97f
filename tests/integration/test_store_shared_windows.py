"""Shared windows in the store: right, and the same however records are cut into commits."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shared_rows import (
    BASE,
    EXPERTS,
    LANE,
    LAYERS,
    SECOND,
    SHAPES,
    SIMILARITY_PANE,
    Record,
    Row,
    RowProcessor,
    expected_step_windows,
    expected_task_windows,
    expected_time_windows,
    make_records,
    share_finisher,
)

from moescope.core.clock import NO_TIME
from moescope.core.emission import SharedDelta
from moescope.core.metrics import METRIC_NAMES
from moescope.core.router_sums import LAGS, SimilaritySums
from moescope.core.tables import TABLE_BY_NAME
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from moescope.core.emission import Emission

BOOKKEEPING = {"row_version", "commit_id"}
COMPARED = ("windows", "metric_histograms", "reference_distributions", "lanes", "batches")


def tables(store: Store) -> dict[str, list[Any]]:
    """Everything that must not depend on commits, sorted."""
    cursor = store.cursor()
    found = {}
    for name in COMPARED:
        names = ", ".join(
            column for column in TABLE_BY_NAME[name].column_names if column not in BOOKKEEPING
        )
        found[name] = sorted(map(repr, cursor.execute(f"SELECT {names} FROM {name}").fetchall()))
    cursor.close()
    return found


def cut(records: Sequence[Record], seed: int, longest: int) -> Iterator[Sequence[Record]]:
    """Records in commits of random length."""
    chance = random.Random(seed)
    begin = 0
    while begin < len(records):
        end = begin + chance.randrange(1, longest + 1)
        yield records[begin:end]
        begin = end


def apply_all(
    path: Path, records: Sequence[Record], seed: int, longest: int, *, reopen_every: int = 0
) -> dict[str, list[Any]]:
    """Tables after all records were applied in random commits and the partition was sealed."""
    processor = RowProcessor()
    store = Store(path, share_finisher, SHAPES)
    commits = list(cut(records, seed, longest))
    for number, commit in enumerate(commits, start=1):
        store.apply(processor.emission(commit, sealed=number == len(commits)))
        if reopen_every and number % reopen_every == 0:
            store.close()
            store = Store(path, share_finisher, SHAPES)
    found = tables(store)
    store.close()
    return found


@pytest.mark.parametrize("late_us", [0, 200_000_000], ids=["in order", "with late rows"])
def test_windows_hold_exactly_their_rows(tmp_path: Path, late_us: int) -> None:
    """Counts, requests, times and scenes agree with what the rows say, late ones included."""
    records = make_records(1, 25, late_us=late_us)
    rows = [row for record in records for row in record.rows]
    processor = RowProcessor()
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        for number, record in enumerate(records, start=1):
            store.apply(processor.emission([record], sealed=number == len(records)))
        cursor = store.cursor()
        found: dict[tuple[object, ...], dict[int, tuple[Any, ...]]] = {}
        query = (
            "SELECT window_kind, scope_kind, scope_value, size, stride, task, start, layer, counts,"
            " requests, seen, epoch_us(first_time), epoch_us(last_time), (scenes, scene_tokens),"
            f" {METRIC_NAMES[2]} FROM windows"
        )
        for *key, layer, counts, requests, seen, first, last, scene, entropy in cursor.execute(
            query
        ).fetchall():
            by_layer = found.setdefault(tuple(key), {})
            assert layer not in by_layer
            by_layer[layer] = (counts, requests, seen, first, last, scene, entropy)
        cursor.close()
    expected = {
        ("time", kind, value, size, slide, "", start): each
        for (kind, value, size, slide, start), each in expected_time_windows(rows).items()
    }
    expected |= {
        ("task", "all", "", 0, 0, task, start): each
        for (task, start), each in expected_task_windows(rows).items()
    }
    expected |= {
        ("step", "all", "", 20, 10, "", start): each
        for start, each in expected_step_windows(rows).items()
    }
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        by_layer = found[name]
        mix = (list(each.scenes), list(each.scenes.values()))
        entropy = sum(row.entropy for row in each.rows)
        for number, layer in enumerate((0, 2)):
            counts, requests, seen, first, last, found_mix, found_entropy = by_layer[layer]
            assert counts == each.counts[number]
            assert (seen, first, last) == (each.seen, each.first_us, each.last_us)
            assert (found_mix, found_entropy) == (mix, entropy)
            if name[0] == "time":
                assert requests == len(each.requests)


def test_windows_compare_exactly_their_requests(tmp_path: Path) -> None:
    """Positions, similarity panes and lags of time windows agree with what the rows say."""
    records = make_records(4, 20)
    processor = RowProcessor()
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        for number, record in enumerate(records, start=1):
            store.apply(processor.emission([record], sealed=number == len(records)))
        cursor = store.cursor()
        columns = ", ".join(METRIC_NAMES[number] for number in (3, 4, 5, 6))
        query = (
            f"SELECT size, start, ({columns}) FROM windows"
            " WHERE window_kind = 'time' AND scope_kind = 'all' AND layer = 0"
        )
        found = {(size, start): values for size, start, values in cursor.execute(query).fetchall()}
        cursor.close()
    rows = [row for record in records for row in record.rows]
    panes: dict[int, list[Row]] = {}
    for row in rows:
        panes.setdefault(row.time_us // SIMILARITY_PANE * SIMILARITY_PANE, []).append(row)
    expected = {}
    for (kind, _, size, _, start), each in expected_time_windows(rows).items():
        if kind != "all":
            continue
        positions = sum(
            (row.position * len(LAYERS) + layer) * EXPERTS + expert
            for row in each.rows
            for layer, expert in enumerate(row.experts)
        )
        inside = [
            pane for pane in panes if start <= pane and pane + SIMILARITY_PANE <= start + size
        ]
        squares = [row.time_us % 97 for pane in inside for row in panes[pane]]
        expected[size, start] = (
            positions,
            sum(pane // SECOND for pane in inside),
            sum(squares) if inside else None,
            sum(2 * (row.time_us % LAGS) for row in each.rows),
        )
    assert any(squares for _, _, squares, _ in expected.values())
    assert found == expected


def similarity_alone(record: Record, processor: RowProcessor, second: int) -> Emission:
    """The emission of a record with one more delta: a similarity pane without any rows."""
    ones = np.ones(len(LAYERS), np.int64)
    counts = np.zeros((len(LAYERS), EXPERTS), np.uint32)
    emission = processor.emission([record])
    start = BASE + second * SECOND
    delta = SharedDelta(
        lane=LANE, phase="decode", kind=WindowKind.TIME, scope_kind=ScopeKind.ALL, scope_value="",
        pane=start + 4 * SECOND, counts=counts, dropped=counts[:, 0].astype(np.uint64), seen=0,
        first_time_us=NO_TIME, last_time_us=NO_TIME,
        similarity=SimilaritySums(
            start, 5 * SECOND, counts.astype(np.int64), 41 * ones, ones, 0 * ones
        ),
    )  # fmt: skip
    return replace(emission, deltas=(*emission.deltas, delta))


@pytest.mark.parametrize("reopen", [False, True], ids=["running", "restarted"])
def test_a_similarity_pane_alone_makes_no_window(tmp_path: Path, reopen: bool) -> None:
    """Without a row there is nothing to show, and the seconds after it do not close either."""
    path = tmp_path / "s.duckdb"
    processor = RowProcessor()
    store = Store(path, share_finisher, SHAPES)
    store.apply(similarity_alone(Record((), BASE), processor, second=0))
    if reopen:
        store.close()
        store = Store(path, share_finisher, SHAPES)
    store.apply(processor.emission([Record((), BASE + SECOND)], sealed=True))
    cursor = store.cursor()
    counts = "SELECT (SELECT count(*) FROM windows), (SELECT count(*) FROM metric_histograms)"
    assert cursor.execute(counts).fetchall() == [(0, 0)]
    assert cursor.execute("SELECT watermark_us, late_rows FROM domains").fetchall() == [
        (BASE + SECOND, 0)
    ]
    store.close()


def test_a_similarity_pane_that_comes_late_finishes_its_windows_again(tmp_path: Path) -> None:
    """A partition that was set aside brings it after the others have closed the windows."""
    processor = RowProcessor()
    row = Row(BASE + SECOND, "q", "t", (1, 0))
    values = ", ".join(METRIC_NAMES[number] for number in (4, 5))
    query = (
        f"SELECT row_version, seen, requests, {values} FROM windows"
        " WHERE window_kind = 'time' AND scope_kind = 'all' AND layer = 0 AND size = 5000000"
    )
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        # Its own similarity pane is closed in the same commit as the window.
        store.apply(processor.emission([Record((row,), BASE + 60 * SECOND)]))
        cursor = store.cursor()
        start = BASE // SECOND
        squares = (BASE + SECOND) % 97
        assert cursor.execute(query).fetchall() == [(1, 1, 1, start, squares)]
        store.apply(similarity_alone(Record((), BASE + 60 * SECOND), processor, second=0))
        assert cursor.execute(query).fetchall() == [(2, 1, 1, start, squares + 41)]
        late = cursor.execute("SELECT late_rows FROM domains").fetchall()
        assert late == [(0,)]
        cursor.close()


@pytest.fixture(scope="module", params=[0, 200_000_000], ids=["in order", "with late rows"])
def stream(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Record], dict[str, list[Any]]]:
    """Records, and the tables when each of them was a commit of its own."""
    records = make_records(7, 16, late_us=request.param)
    path = tmp_path_factory.mktemp("fine") / "fine.duckdb"
    return records, apply_all(path, records, 0, 1)


@settings(max_examples=4)
@given(cutting=st.integers(0, 1000), reopen_every=st.sampled_from([0, 1, 2]))
def test_commits_do_not_show_in_the_tables(
    tmp_path_factory: pytest.TempPathFactory,
    stream: tuple[list[Record], dict[str, list[Any]]],
    cutting: int,
    reopen_every: int,
) -> None:
    """Other commit boundaries, and restarts between commits, give the same tables."""
    records, fine = stream
    path = tmp_path_factory.mktemp("coarse") / "coarse.duckdb"
    coarse = apply_all(path, records, cutting, 10, reopen_every=reopen_every)
    for name in COMPARED:
        assert coarse[name] == fine[name], name
    assert all(fine.values())
