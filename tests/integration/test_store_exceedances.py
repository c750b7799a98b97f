"""Exceedances merge per slot, and hooks take part in the commit that brings them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.exported import exported_rows, stored_rows
from support.shared_rows import (
    BASE,
    LANE,
    SECOND,
    SHAPES,
    Record,
    Row,
    RowProcessor,
    make_records,
    share_finisher,
)

from moescope.core.clock import ManualClock
from moescope.core.emission import Emission, Judgement, WindowGroup
from moescope.core.exceedance import SLOT_US, Exceedance, ExceedanceKey, Exceedances
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.storage.control import insert_rows
from moescope.storage.export import Exporter
from moescope.storage.lanes import lane_id
from moescope.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.emission import CommitFacts, FinishedWindows, Histograms

SLOT = BASE - BASE % SLOT_US
QUERY = (
    "SELECT * EXCLUDE (commit_id) REPLACE (epoch_us(slot) AS slot) FROM exceedances ORDER BY ALL"
)


def judging_finisher(group: WindowGroup) -> tuple[FinishedWindows, Histograms]:
    """Every window's value is its first count; exceedances only of first closings."""
    finished, histograms = share_finisher(group)
    layers = np.zeros((len(group), len(group.lane.layers)), np.uint64)
    found: Exceedances = {}
    for window in range(len(group)):
        close = int(group.close_time_us[window])
        if group.row_version[window] != 1 or close < 0:
            continue
        key = ExceedanceKey(
            group.lane, group.phase, str(group.kind), group.size, group.stride,
            str(group.scope_kind), group.scope_value, "load", close - close % SLOT_US, "t-1",
        )  # fmt: skip
        value = float(group.counts[window, 0, 0]) or -math.inf
        each = Exceedance(value, "gini", 0, int(group.start[window]), "", 1, int(value > 1), 0)
        found[key] = found[key].merged(each) if key in found else each
    judgement = Judgement(
        version=["t-1"] * len(group), judged=layers, warn=layers, red=layers, exceedances=found
    )
    return replace(finished, judgement=judgement), histograms


def rows_of(store: Store, query: str = QUERY) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    with store.cursor() as cursor:
        return cursor.execute(query).fetchall()


def key(slot: int = SLOT, family: str = "load", version: str = "t-1") -> ExceedanceKey:
    """Of token windows."""
    return ExceedanceKey(
        LANE, "decode", "token", 128, 128, "all", "", family, slot, version
    )  # fmt: skip


def with_exceedances(emission: Emission, exceedances: Exceedances) -> Emission:
    """The emission with token windows, none of them kept, that bring these."""
    none = np.zeros((0, 2), np.uint64)
    empty = share_finisher(no_windows())[0]
    judgement = Judgement(version=[], judged=none, warn=none, red=none, exceedances=exceedances)
    return replace(emission, windows=(replace(empty, judgement=judgement),))


def no_windows() -> WindowGroup:
    """A group of token windows without any."""
    none = np.zeros(0, np.int64)
    return WindowGroup(
        lane=LANE, phase="decode", kind=WindowKind.TOKEN, size=128, stride=128,
        scope_kind=ScopeKind.ALL, scope_value="", start=none, first_time_us=none,
        last_time_us=none, close_time_us=none, request=[], task=[], scene=[], node=[], seen=none,
        expected=none, lost=none, unknown_gap=none == 1, requests=none, close_reason=[],
        complete=none == 1, weight=none.astype(float), row_version=none.astype(np.int32),
        counts=np.zeros((0, 2, 4), np.uint32), dropped=np.zeros((0, 2), np.uint64),
    )  # fmt: skip


def test_a_slot_keeps_the_worst_and_adds_the_numbers(tmp_path: Path) -> None:
    """Over commits as within one; a slot where nothing was judged has a null value."""
    processor = RowProcessor()
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        for increments in (
            {key(): Exceedance(1.5, "gini", 2, 7, "q1", 3, 1, 0)},
            {
                key(): Exceedance(2.5, "drop_rate", 0, 9, "q2", 2, 2, 1),
                key(family="router"): Exceedance(-math.inf, "", 0, 0, "", 1, 0, 1),
                key(slot=SLOT + SLOT_US): Exceedance(-0.5, "gini", 0, 9, "", 1, 0, 0),
                key(version="t-2"): Exceedance(9.0, "gini", 0, 9, "", 1, 1, 0),
            },
            {
                key(): Exceedance(2.0, "gini", 2, 1, "q3", 1, 0, 0),
                key(family="router"): Exceedance(-math.inf, "", 0, 0, "", 2, 0, 0),
            },
        ):
            store.apply(with_exceedances(processor.emission([Record((), BASE)]), increments))
        window = (lane_id(LANE), "decode", "token", 128, 128, "all", "")
        assert rows_of(store) == [
            (*window, "load", SLOT, "t-1", 2.5, "drop_rate", 0, 9, "q2", 6, 3, 1),
            (*window, "load", SLOT, "t-2", 9.0, "gini", 0, 9, "", 1, 1, 0),
            (*window, "load", SLOT + SLOT_US, "t-1", -0.5, "gini", 0, 9, "", 1, 0, 0),
            (*window, "router", SLOT, "t-1", None, "", 0, 0, "", 3, 0, 1),
        ]  # fmt: skip


def test_commits_do_not_show_in_exceedances(tmp_path: Path) -> None:
    """However records are cut, and across a restart; the export follows each commit."""
    records = make_records(11, 14)
    found = []
    for commit in (1, 5):
        path = tmp_path / f"{commit}.duckdb"
        processor = RowProcessor()
        store = Store(path, judging_finisher, SHAPES)
        exporter = Exporter(store, tmp_path / f"export-{commit}", ManualClock())
        for begin in range(0, len(records), commit):
            part = records[begin : begin + commit]
            store.apply(processor.emission(part, sealed=begin + commit >= len(records)))
            exporter.export_tail()
            if begin == 5:
                store.close()
                store = Store(path, judging_finisher, SHAPES)
                exporter = Exporter(store, tmp_path / f"export-{commit}", ManualClock())
        exporter.export_tail()
        assert exported_rows(tmp_path / f"export-{commit}", "exceedances") == stored_rows(
            store, "exceedances"
        )
        found.append(rows_of(store))
        windows = (
            "SELECT count(DISTINCT (start, size, scope_value, task, window_kind)) FROM windows"
        )
        assert sum(row[-3] for row in found[-1]) == rows_of(store, windows)[0][0]
        store.close()
    assert found[0] == found[1]
    assert found[0]


class Hook:
    """Notes each slot and writes a row per commit; fails when told to."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.facts: list[CommitFacts] = []
        self.fails = False

    def reset(self) -> None:
        """Note it."""
        self.events.append("reset")

    def committing(self, connection: Any, facts: CommitFacts) -> None:
        """Write a row that says how many slots are stored."""
        self.events.append("committing")
        self.facts.append(facts)
        stored = connection.execute("SELECT count(*) FROM exceedances").fetchone()[0]
        row = {
            "finding": f"f{facts.commit_id}", "pattern": "p", "lane": "", "phase": "",
            "scope_kind": "", "scope_value": "", "window_kind": "", "size": stored,
            "began_at": BASE, "ended_at": BASE, "confidence": 1.0, "pages": False,
            "evidence_json": "{}", "likely_cause": "", "next_step": "",
        }  # fmt: skip
        insert_rows(connection, "patterns", [row], facts.commit_id)
        if self.fails:
            raise RuntimeError("on purpose")

    def committed(self, facts: CommitFacts) -> None:
        """Note it."""
        self.events.append(f"committed {facts.commit_id}")


def test_a_hook_writes_in_the_commit_that_it_is_told_of(tmp_path: Path) -> None:
    """Its rows carry the commit, and it finds the commit's exceedances stored."""
    hook, processor = Hook(), RowProcessor()
    row = Row(BASE, "q", "t", (0, 0))
    with Store(tmp_path / "s.duckdb", judging_finisher, SHAPES, hook=hook) as store:
        hook.events.clear()
        store.apply(processor.emission([Record((row,), BASE + SECOND)]))
        store.apply(processor.emission([Record((), BASE + 8 * SECOND)]))
        assert hook.events == ["committing", "committed 1", "committing", "committed 2"]
        # Two scopes of 1 s and of 5 s have closed.
        found = rows_of(store, "SELECT finding, size, commit_id FROM patterns ORDER BY 1")
        assert found == [("f1", 0, 1), ("f2", 4, 2)]
    first, second = hook.facts
    assert dict(first.reached_us) == {"live": BASE + SECOND}
    assert dict(second.reached_us) == {"live": BASE + 8 * SECOND}
    assert dict(second.lanes) == {lane_id(LANE): LANE}
    closes = defaultdict(set)
    for each in second.exceedances:
        closes[each.size].add((each.scope_kind, each.slot_us))
    assert closes == {
        SECOND: {("all", SLOT), ("node", SLOT)},
        5 * SECOND: {("all", SLOT + SLOT_US), ("node", SLOT + SLOT_US)},
    }


def test_a_hook_that_fails_rolls_everything_back(tmp_path: Path) -> None:
    """The hook forgets, and the same emission can be applied again."""
    hook, processor = Hook(), RowProcessor()
    records = make_records(2, 6)
    tables = ("windows", "exceedances", "patterns", "batches", "deltas", "offsets")
    with (
        Store(tmp_path / "s.duckdb", judging_finisher, SHAPES, hook=hook) as store,
        Store(tmp_path / "r.duckdb", judging_finisher, SHAPES, hook=Hook()) as reference,
    ):
        first = processor.emission(records[:3])
        second = processor.emission(records[3:], sealed=True)
        store.apply(first)
        before = {name: stored_rows(store, name) for name in tables}
        hook.events.clear()
        hook.fails = True
        for _ in range(2):
            with pytest.raises(RuntimeError, match="on purpose"):
                store.apply(second)
        assert hook.events == ["committing", "reset"] * 2
        assert {name: stored_rows(store, name) for name in tables} == before
        hook.fails = False
        store.apply(second)
        reference.apply(first)
        reference.apply(second)
        for name in tables:
            assert stored_rows(store, name) == stored_rows(reference, name)


def test_a_hook_forgets_whenever_the_file_may_disagree(tmp_path: Path) -> None:
    """After opening and closing, and when somebody else writes what it keeps in memory."""
    hook = Hook()
    with Store(tmp_path / "s.duckdb", judging_finisher, SHAPES, hook=hook) as store:
        assert hook.events == ["reset"]
        store.change(lambda *_: None, author="me", action="look")
        assert hook.events == ["reset"]
        row = {
            "alert": "a", "lane": "l", "phase": "decode", "window_kind": "time", "size": 1,
            "stride": 1, "scope_kind": "all", "scope_value": "", "family": "load", "pattern": "",
            "state": "firing", "began_at": BASE, "last_slot": BASE, "worst_value": 1.0,
            "worst_metric": "gini", "worst_layer": 0, "worst_start": 0, "worst_request": "",
            "version": "t-1", "caused_by": "", "historic": False,
        }  # fmt: skip
        store.change(
            lambda connection, commit_id: insert_rows(connection, "alerts", [row], commit_id),
            author="me", action="alert",
        )  # fmt: skip
        assert hook.events == ["reset"] * 2
    assert hook.events == ["reset"] * 3


@pytest.mark.parametrize(("domain", "final"), [("live", False), ("import", True)])
def test_a_sealed_import_is_past_all_of_its_slots(tmp_path: Path, domain: str, final: bool) -> None:
    """Nothing follows, so the last slot is final; a live domain may go on."""
    hook = Hook()
    lane = replace(LANE, domain=domain)
    processor = RowProcessor(lane=lane)
    with Store(tmp_path / "s.duckdb", judging_finisher, SHAPES, hook=hook) as store:
        row = Row(BASE + 3 * SECOND, "q", "t", (0, 0), lane=lane)
        store.apply(processor.emission([Record((row,), row.time_us)], sealed=True))
    (facts,) = hook.facts
    last = max(each.slot_us for each in facts.exceedances)
    assert (last + SLOT_US + 2 * SECOND <= facts.reached_us[domain]) == final
