"""Shared windows in the store: right, and the same however records are cut into commits."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shared_rows import (
    SHAPES,
    Record,
    RowProcessor,
    expected_step_windows,
    expected_task_windows,
    expected_time_windows,
    make_records,
    share_finisher,
)

from moescope.core.tables import TABLE_BY_NAME
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

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
        found[name] = sorted(map(repr, cursor.execute(f"SELECT {names} FROM {name}").fetchall()))  # noqa: S608
    cursor.close()
    return found


def cut(records: Sequence[Record], seed: int, longest: int) -> Iterator[Sequence[Record]]:
    """Records in commits of random length."""
    chance = random.Random(seed)  # noqa: S311 (test data)
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
        for *key, layer, counts, requests, seen, first, last, scene in cursor.execute(
            "SELECT window_kind, scope_kind, scope_value, size, stride, task, start, layer, counts,"
            " requests, seen, epoch_us(first_time), epoch_us(last_time), scene FROM windows"
        ).fetchall():
            by_layer = found.setdefault(tuple(key), {})
            assert layer not in by_layer
            by_layer[layer] = (counts, requests, seen, first, last, scene)
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
        scene = next(iter(each.scenes)) if len(each.scenes) == 1 else ""
        for number, layer in enumerate((0, 2)):
            counts, requests, seen, first, last, found_scene = by_layer[layer]
            assert counts == each.counts[number]
            assert (seen, first, last, found_scene) == (
                each.seen,
                each.first_us,
                each.last_us,
                scene,
            )
            if name[0] == "time":
                assert requests == len(each.requests)


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
