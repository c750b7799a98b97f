"""Red lines as the hook of a real store: one transaction with the windows that cause them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.red_line_store import book_of, exceedance, rule, version
from support.shared_rows import BASE, LANE, SHAPES, Record, RowProcessor, share_finisher

from moescope.core.clock import ManualClock
from moescope.core.emission import Emission, Judgement, WindowGroup
from moescope.core.exceedance import SLOT_US, ExceedanceKey
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.jobs.alerts import RedLines
from moescope.storage.errors import EmissionRefusedError
from moescope.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path

FIRST_US = (BASE // SLOT_US + 1) * SLOT_US


def with_slot(emission: Emission, slot_us: int, value: float) -> Emission:
    """The emission with a token window that closed in a slot, and is not kept."""
    key = ExceedanceKey(LANE, "decode", "token", 128, 128, "all", "", "load", slot_us, "t-1")
    none = np.zeros(0, np.int64)
    group = WindowGroup(
        lane=LANE, phase="decode", kind=WindowKind.TOKEN, size=128, stride=128,
        scope_kind=ScopeKind.ALL, scope_value="", start=none, first_time_us=none,
        last_time_us=none, close_time_us=none, request=[], task=[], scene=[], node=[], seen=none,
        expected=none, lost=none, unknown_gap=none == 1, requests=none, close_reason=[],
        complete=none == 1, weight=none.astype(float), row_version=none.astype(np.int32),
        counts=np.zeros((0, 2, 4), np.uint32), dropped=np.zeros((0, 2), np.uint64),
    )  # fmt: skip
    flags = np.zeros((0, 2), np.uint64)
    judgement = Judgement(
        version=[], judged=flags, warn=flags, red=flags, exceedances={key: exceedance(value)}
    )
    return replace(emission, windows=(replace(share_finisher(group)[0], judgement=judgement),))


def rows_of(store: Store, query: str) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    with store.cursor() as cursor:
        return cursor.execute(query).fetchall()


def test_alerts_commit_with_their_windows(tmp_path: Path) -> None:
    """A refused commit, a change by a person and a restart in between lose and double nothing."""
    book = book_of(version("t-1", rule(), lane=LANE))
    path = tmp_path / "s.duckdb"

    def opened() -> Store:
        hook = RedLines(book, ManualClock(BASE), ("log",))
        return Store(path, share_finisher, SHAPES, hook=hook)

    processor = RowProcessor()
    store = opened()
    emissions = []
    for index, symbol in enumerate("oo......."):
        slot_us = FIRST_US + index * SLOT_US
        step = processor.emission([Record((), slot_us + SLOT_US + 1_000_000)])
        emissions.append(with_slot(step, slot_us, 3.0 if symbol == "o" else -1.0))
    for index, emission in enumerate(emissions):
        store.apply(emission)
        if index == 2:
            with pytest.raises(EmissionRefusedError):
                store.apply(emission)
        if index == 3:
            store.change(
                lambda connection, commit_id: connection.execute(
                    "UPDATE alerts SET pattern = 'hot_expert', commit_id = ?", [commit_id]
                ),
                author="job:patterns",
                action="name",
            )
        if index == 5:
            store.close()
            store = opened()
    with store:
        states = rows_of(store, "SELECT state, epoch_us(slot) FROM alert_events ORDER BY number")
        assert states == [
            ("pending", FIRST_US),
            ("firing", FIRST_US + SLOT_US),
            ("recovering", FIRST_US + 3 * SLOT_US),
            ("resolved", FIRST_US + 7 * SLOT_US),
        ]
        assert rows_of(store, "SELECT state, pattern FROM alerts") == [("resolved", "hot_expert")]
        told = "SELECT json_extract_string(body_json, '$.state') FROM outbox ORDER BY notification"
        assert rows_of(store, told) == [("firing",), ("resolved",)]
        (fired,) = rows_of(store, "SELECT min(commit_id) FROM outbox")[0]
        assert (
            fired
            == rows_of(store, "SELECT commit_id FROM alert_events WHERE state = 'firing'")[0][0]
        )
