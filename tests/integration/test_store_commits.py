"""What one emission leaves in the store, and what leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.shared_rows import (
    BASE,
    EXPERTS,
    LANE,
    LAYERS,
    MINUTE,
    SECOND,
    SHAPES,
    Record,
    Row,
    RowProcessor,
    make_records,
    share_finisher,
    with_domain,
)

from moescope.core.accounts import DeadLetter, NodeStatus
from moescope.core.clock import NO_TIME
from moescope.core.emission import Emission, TrailingReference, WindowGroup
from moescope.core.metrics import DROPS_UNKNOWN
from moescope.core.vocabulary import CloseReason, ScopeKind, WindowKind
from moescope.storage.errors import EmissionRefusedError, FencedError
from moescope.storage.histogram_rows import decode_bins
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moescope.core.emission import FinishedWindows, Histograms

FAR = BASE + 1000 * MINUTE


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as opened:
        yield opened


def rows_of(store: Store, query: str) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    cursor = store.cursor()
    try:
        return cursor.execute(query).fetchall()
    finally:
        cursor.close()


def one_row(
    time_us: int, request: str = "q", task: str = "t", *, last: bool = False, expert: int = 1
) -> Row:
    """A row of node `n`."""
    return Row(time_us, request, task, (expert, 0), last_of_task=last)


def token_group(windows: int = 2, **changes: object) -> WindowGroup:
    """Closed token windows of requests q0, q1 and so on."""
    counts = 128 + np.arange(windows * len(LAYERS) * EXPERTS, dtype=np.uint32)
    values: dict[str, Any] = {
        "lane": LANE, "phase": "decode", "kind": WindowKind.TOKEN, "size": 128, "stride": 128,
        "scope_kind": ScopeKind.ALL, "scope_value": "",
        "start": np.zeros(windows, np.int64),
        "first_time_us": np.full(windows, BASE), "last_time_us": np.full(windows, BASE + 5),
        "close_time_us": np.full(windows, BASE + 7),
        "request": [f"q{number}" for number in range(windows)], "task": ["t"] * windows,
        "scene": ["chat"] * windows, "node": ["n"] * windows,
        "seen": np.full(windows, 128), "expected": np.full(windows, 128),
        "lost": np.zeros(windows, np.int64), "unknown_gap": np.zeros(windows, bool),
        "requests": np.ones(windows, np.int64),
        "close_reason": [CloseReason.COMPLETE] * windows, "complete": np.ones(windows, bool),
        "weight": np.ones(windows), "row_version": np.ones(windows, np.int32),
        "counts": counts.reshape(windows, len(LAYERS), EXPERTS),
        "dropped": np.zeros((windows, len(LAYERS)), np.uint64),
    }  # fmt: skip
    return WindowGroup(**{**values, **changes})


def with_windows(emission: Emission, *groups: WindowGroup) -> Emission:
    """The emission with finished token windows and their histograms."""
    finished: list[FinishedWindows] = []
    histograms: Histograms = {}
    for group in groups:
        each, increments = share_finisher(group)
        finished.append(each)
        histograms |= increments
    return replace(emission, windows=tuple(finished), histograms=histograms)


EMPTY_RECORD = Record((), BASE)


def test_a_token_window_becomes_a_row_per_layer(store: Store) -> None:
    """Every value lands in its own column, and the layer's counts in the layer's row."""
    store.apply(with_windows(RowProcessor().emission([EMPTY_RECORD]), token_group()))
    rows = rows_of(
        store,
        "SELECT request, layer, counts, tokens, seen, expected, coverage, complete, span,"
        " start, start_time, epoch_us(close_time), dropped, hot_load_share, topk_load_share,"
        " close_reason, weight, node, scene, task, level, level_reason, warn_metrics,"
        " trailing_reference, threshold_version, model, origin, experts, top_k"
        " FROM windows ORDER BY request, layer",
    )
    counts = 128 + np.arange(2 * 2 * EXPERTS).reshape(2, 2, EXPERTS)
    assert rows == [
        (
            f"q{window}", layer, counts[window, number].tolist(),
            int(counts[window, number].sum()), 128, 128, 1.0, True, 128, 0, None, BASE + 7, 0,
            float(counts[window, number].max()), None, "complete", 1.0, "n", "chat", "t",
            "insufficient", "no calibrated threshold", [], None, None, "m", "model", EXPERTS, 1,
        )
        for window in range(2)
        for number, layer in enumerate(LAYERS)
    ]  # fmt: skip


def test_windows_without_weight_enter_histograms_only(store: Store) -> None:
    """Row sampling must not bias the histograms."""
    group = token_group(weight=np.array([0.0, 8.0]))
    store.apply(with_windows(RowProcessor().emission([EMPTY_RECORD]), group))
    assert rows_of(store, "SELECT DISTINCT request, weight FROM windows") == [("q1", 8.0)]
    ((bins,),) = rows_of(store, "SELECT bins FROM metric_histograms")
    assert decode_bins(bins).sum() == 2 * len(LAYERS)


def test_reasons_for_insufficient_windows(store: Store) -> None:
    """Unknown coverage comes first, then low coverage, then a partial window."""
    group = token_group(
        windows=4,
        seen=np.array([100, 100, 128, 128]),
        unknown_gap=np.array([True, False, False, False]),
        complete=np.array([False, False, False, True]),
    )
    store.apply(with_windows(RowProcessor().emission([EMPTY_RECORD]), group))
    found = rows_of(
        store, "SELECT DISTINCT request, level_reason, coverage FROM windows ORDER BY request"
    )
    assert found == [
        ("q0", "coverage unknown", None),
        ("q1", "coverage", 100 / 128),
        ("q2", "partial", 1.0),
        ("q3", "no calibrated threshold", 1.0),
    ]


def test_unknown_drops_are_null(store: Store) -> None:
    """A producer that does not tell must not look like one that dropped nothing."""
    dropped = np.full((2, 2), DROPS_UNKNOWN, np.uint64)
    dropped[1, 1] = 5
    group = token_group(dropped=dropped)
    store.apply(with_windows(RowProcessor().emission([EMPTY_RECORD]), group))
    found = rows_of(store, "SELECT dropped FROM windows ORDER BY request, layer")
    assert found == [(None,), (None,), (None,), (5,)]


def test_a_request_that_returns_is_not_stored_twice(store: Store) -> None:
    """The first row of a key stays; the others are counted."""
    processor = RowProcessor()
    first = token_group(windows=2)
    again = token_group(windows=3, seen=np.array([1, 1, 1]))
    store.apply(with_windows(processor.emission([EMPTY_RECORD]), first))
    store.apply(with_windows(processor.emission([EMPTY_RECORD]), again, again))
    found = rows_of(store, "SELECT DISTINCT request, seen FROM windows ORDER BY request")
    assert found == [("q0", 128), ("q1", 128), ("q2", 1)]
    assert rows_of(store, "SELECT count(*) FROM windows") == [(6,)]
    assert rows_of(store, "SELECT duplicate_windows FROM domains") == [(5,)]


def test_accounting_is_stored_with_the_commit(store: Store) -> None:
    """Batches, dead letters, producers, references and offsets are one transaction."""
    emission = RowProcessor().emission([EMPTY_RECORD, EMPTY_RECORD])
    reference = TrailingReference(
        reference_id="x", lane=LANE, phase="decode", partition="p", effective_from_us=BASE,
        counts=np.ones((2, EXPERTS), np.int64),
    )  # fmt: skip
    letter = DeadLetter(
        partition="p", offset=1, append_time_us=NO_TIME, reason="malformed", detail="why",
        payload=b"\x00\xff",
    )  # fmt: skip
    node = NodeStatus(
        partition="p", node="n", incarnation=2**64 - 1, last_sequence=4, watermark_us=BASE,
        state="active", lost_rows=2, gaps=1,
    )  # fmt: skip
    emission = replace(emission, references=(reference,), dead_letters=(letter,), nodes=(node,))
    store.apply(emission)
    assert rows_of(store, "SELECT log_offset, verdict, reasons FROM batches ORDER BY 1") == [
        (0, "accepted", ["because"]),
        (1, "accepted", ["because"]),
    ]
    assert rows_of(store, "SELECT reason, payload, append_time FROM dead_letters") == [
        ("malformed", b"\x00\xff", None)
    ]
    assert rows_of(store, "SELECT incarnation, gaps FROM producers") == [(2**64 - 1, 1)]
    assert rows_of(store, "SELECT reference_id, partition FROM reference_distributions") == [
        ("x", "p")
    ]
    assert rows_of(store, "SELECT DISTINCT commit_id FROM batches") == [(1,)]
    assert store.load_progress() == {each.partition: each for each in emission.progress}


def test_an_emission_is_applied_once(store: Store) -> None:
    """A commit that is sent again (its answer was lost) changes nothing."""
    processor = RowProcessor()
    records = make_records(3, 4)
    store.apply(processor.emission(records[:2]))
    again = processor.emission(records[2:])
    store.apply(again)
    before = rows_of(store, "SELECT sum(seen) FROM deltas")
    with pytest.raises(EmissionRefusedError, match="continue partition p"):
        store.apply(again)
    assert rows_of(store, "SELECT sum(seen) FROM deltas") == before
    store.apply(replace(processor.emission([records[-1]]), batches=()))


def test_a_seal_is_applied_once(store: Store) -> None:
    """The last commit may have no records; sent again, its windows are not stored twice."""
    emission = RowProcessor().emission([EMPTY_RECORD])
    store.apply(emission)
    (progress,) = emission.progress
    seal = with_windows(Emission(progress=(replace(progress, sealed=True),)), token_group())
    store.apply(seal)
    with pytest.raises(EmissionRefusedError, match="no partition moves"):
        store.apply(seal)


@pytest.mark.parametrize(
    "change",
    [
        {"emitted_to": 1},
        {"watermark_us": BASE - 1},
        {"domain": "import"},
    ],
    ids=["offset", "watermark", "domain"],
)
def test_progress_never_goes_back(store: Store, change: dict[str, Any]) -> None:
    """A processor with an old memory is refused."""
    emission = RowProcessor().emission([EMPTY_RECORD, EMPTY_RECORD])
    store.apply(emission)
    (progress,) = emission.progress
    with pytest.raises(EmissionRefusedError):
        store.apply(Emission(progress=(replace(progress, **change),)))
    assert store.load_progress() == {"p": progress}


def test_an_error_rolls_back_memory_and_file(tmp_path: Path) -> None:
    """A commit that failed half-way can be applied again, and counts once."""
    fail = [True]

    def finisher(group: WindowGroup) -> tuple[FinishedWindows, Histograms]:
        if fail[0] and group.kind is WindowKind.TASK:
            raise RuntimeError("on purpose")
        return share_finisher(group)

    records = make_records(5, 12)
    processor, other = RowProcessor(), RowProcessor()
    with (
        Store(tmp_path / "a.duckdb", finisher, SHAPES) as store,
        Store(tmp_path / "b.duckdb", share_finisher, SHAPES) as reference,
    ):
        for begin in range(0, 12, 4):
            commit, sealed = records[begin : begin + 4], begin == 8
            reference.apply(other.emission(commit, sealed=sealed))
            emission = processor.emission(commit, sealed=sealed)
            fail[0] = True
            try:
                store.apply(emission)
            except RuntimeError:
                fail[0] = False
                store.apply(emission)
        assert not fail[0]
        query = "SELECT * EXCLUDE (commit_id) FROM windows ORDER BY ALL"
        assert rows_of(store, query) == rows_of(reference, query)
        query = "SELECT * FROM offsets"
        assert rows_of(store, query) == rows_of(reference, query)


def test_a_row_that_is_late_finishes_the_window_again(store: Store) -> None:
    """Row version 2 holds both rows, and the histogram one window, in its new place."""
    processor = RowProcessor()
    store.apply(processor.emission([Record((one_row(BASE),), BASE + 5 * SECOND)]))
    one_second = "window_kind = 'time' AND size = 1000000 AND scope_kind = 'all' AND layer = 0"
    query = f"SELECT seen, row_version, requests, counts FROM windows WHERE {one_second}"
    assert rows_of(store, query) == [(1, 1, 1, [0, 1, 0, 0])]
    late = (one_row(BASE + 1, "other"), one_row(BASE + 2, "third"))
    store.apply(processor.emission([Record(late, BASE + 6 * SECOND)]))
    assert rows_of(store, query) == [(3, 2, 3, [0, 3, 0, 0])]
    store.apply(
        processor.emission([Record((one_row(BASE + 3, "4", expert=2),), BASE + 6 * SECOND)])
    )
    assert rows_of(store, query) == [(4, 3, 4, [0, 3, 1, 0])]
    histograms = rows_of(
        store,
        "SELECT band, bins FROM metric_histograms WHERE window_kind = 'time' AND size = 1000000"
        " AND scope_kind = 'all'",
    )
    ((band, bins),) = histograms
    assert band == "3"
    counts = decode_bins(bins)
    assert [np.flatnonzero(layer).tolist() for layer in counts] == [[3], [4]]


def test_a_row_that_is_too_late_is_counted_and_dropped(store: Store) -> None:
    """Ten minutes after closing a window is final."""
    processor = RowProcessor()
    store.apply(processor.emission([Record((one_row(BASE),), BASE + 5 * SECOND)]))
    store.apply(processor.emission([Record((), FAR)]))
    before = rows_of(store, "SELECT * FROM windows ORDER BY ALL")
    store.apply(processor.emission([Record((one_row(BASE + 1, "late"),), FAR)]))
    assert rows_of(store, "SELECT * FROM windows ORDER BY ALL") == before
    # Per window: all and node; 1 s, 5 s and three of 60 s that slide by 20 s; and the task's.
    assert rows_of(store, "SELECT late_rows FROM domains") == [(2 * (1 + 1 + 3) + 1,)]
    assert rows_of(store, "SELECT count(*) FROM deltas") == [(0,)]


def test_panes_are_deleted_once_no_row_can_change_them(store: Store) -> None:
    """The table of open parts stays as small as the last minutes."""
    processor = RowProcessor()
    for minute in range(0, 60, 3):
        time_us = BASE + minute * MINUTE
        last = one_row(time_us, task=f"t{minute}", last=True)
        store.apply(processor.emission([Record((last,), time_us)]))
    ((oldest,),) = rows_of(store, "SELECT min(pane) FROM deltas")
    assert oldest >= BASE + (57 - 16) * MINUTE
    assert rows_of(store, "SELECT count(DISTINCT task) FROM windows WHERE task <> ''") == [(19,)]


def test_an_import_leaves_no_panes_behind(store: Store) -> None:
    """A sealed import is complete: nothing can be late."""
    lane = with_domain(LANE, "import")
    rows = (replace(one_row(BASE), lane=lane),)
    store.apply(RowProcessor(lane=lane).emission([Record(rows, BASE)], sealed=True))
    assert rows_of(store, "SELECT count(*) FROM deltas") == [(0,)]
    assert rows_of(store, "SELECT DISTINCT window_kind FROM windows ORDER BY 1") == [
        ("task",),
        ("time",),
    ]


def test_a_partition_that_is_gone_does_not_stop_the_others(store: Store) -> None:
    """More than 10 s behind the fastest, it is not waited for; in an import it is."""
    for domain, closed in (("live", 1), ("import", 0)):
        lane = with_domain(LANE, domain)
        slow, fast = RowProcessor(f"{domain}-slow", lane), RowProcessor(f"{domain}-fast", lane)
        store.apply(slow.emission([Record((one_row(BASE),), BASE)]))
        store.apply(fast.emission([Record((one_row(BASE),), BASE + 9 * SECOND)]))
        query = (
            "SELECT count(*) FROM windows WHERE layer = 0 AND scope_kind = 'all'"
            f" AND size = 1000000 AND domain = '{domain}'"
        )
        assert rows_of(store, query) == [(0,)]
        store.apply(fast.emission([Record((), BASE + 11 * SECOND)]))
        assert rows_of(store, query) == [(closed,)]


def test_another_owner_is_noticed(tmp_path: Path) -> None:
    """Where file locks do not hold, the fencing token still keeps two owners apart."""
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        cursor = store.cursor()
        cursor.execute("UPDATE owner SET fencing_token = fencing_token + 1")
        cursor.close()
        with pytest.raises(FencedError):
            store.apply(RowProcessor().emission([EMPTY_RECORD]))
        assert store.load_progress() == {}


DISK_FULL = """
import resource, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from support.shared_rows import SHAPES, RowProcessor, make_records, share_finisher
from moescope.storage.histogram_rows import decode_bins
from moescope.storage.errors import StoreWriteError
from moescope.storage.store import Store

records, processor = make_records(5, 12), RowProcessor()
told = []
store = Store(Path(sys.argv[1]), share_finisher, SHAPES, log=told.append)
failures = 0
assert (store.fencing_token, store.trouble) == (1, "")
for begin in range(0, 12, 3):
    emission = processor.emission(records[begin : begin + 3], sealed=begin == 9)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if begin:
        written = max(path.stat().st_size for path in Path(sys.argv[1]).parent.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (written, hard))
    try:
        store.apply(emission)
    except StoreWriteError as error:
        assert error.retriable and error.exit_code == 3  # the disk's fault, not moescope's
        assert error.what in store.trouble and "free space" in store.trouble
        assert [error.what in line for line in told] == [True]
        failures += 1
        try:
            store.cursor().close()
        except StoreWriteError as refused:
            assert refused.retriable
            failures += 1
        assert len(told) == 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        store.apply(emission)
        assert "can be written again" in told[-1]
        told.clear()
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    # It was opened again, and nobody else had it meanwhile.
    assert (store.fencing_token, store.trouble) == (1, "")
store.close()
print(failures)
"""


def test_a_full_disk_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """A commit that did not fit can be applied again, and a reader is told so meanwhile."""
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "s.duckdb"
    result = subprocess.run(
        [sys.executable, "-c", DISK_FULL.format(paths=sys.path), str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 1
    records, processor = make_records(5, 12), RowProcessor()
    with Store(tmp_path / "b.duckdb", share_finisher, SHAPES) as reference:
        for begin in range(0, 12, 3):
            commit = records[begin : begin + 3]
            reference.apply(processor.emission(commit, sealed=begin == 9))
        query = "SELECT * EXCLUDE (commit_id) FROM windows ORDER BY ALL"
        expected = rows_of(reference, query)
    with Store(path, share_finisher, SHAPES) as store:
        assert rows_of(store, query) == expected
