from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.shared_rows import (
    BASE,
    MINUTE,
    SECOND,
    SHAPES,
    Record,
    Row,
    RowProcessor,
    share_finisher,
)

from moescope.storage import Store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("silent_for", "unknown"),
    [(0, False), (30 * SECOND, True), (11 * MINUTE, False)],
    ids=["with the others", "set aside", "gone"],
)
def test_a_silent_node_leaves_no_window_that_looks_complete(
    tmp_path: Path, silent_for: int, *, unknown: bool
) -> None:
    """No data is not health: while a live partition is missing, fleet windows have no coverage."""
    quiet, busy = RowProcessor("quiet"), RowProcessor("busy")
    row = Row(BASE, "q", "t", (1, 2))
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        store.apply(quiet.emission([Record((), BASE + 3 * SECOND - silent_for)]))
        store.apply(busy.emission([Record((row,), BASE + 3 * SECOND)]))
        with store.cursor() as cursor:
            found = cursor.execute(
                "SELECT scope_kind, coverage IS NULL, level_reason FROM windows"
                " WHERE window_kind = 'time' AND size = 1000000 AND layer = 0"
            ).fetchall()
    by_scope = {scope: (is_unknown, reason) for scope, is_unknown, reason in found}
    assert by_scope["all"][0] is unknown
    assert (by_scope["all"][1] == "coverage unknown") is unknown
    assert by_scope["node"][0] is False


@pytest.mark.parametrize(
    ("behind", "unknown"),
    [((), False), ((30 * SECOND,), True), ((11 * MINUTE, 20 * SECOND), True), ((0,), False)],
    ids=["nobody", "one", "one and one that is gone", "with the others"],
)
def test_a_node_that_is_set_aside_is_missed_too(
    tmp_path: Path, behind: tuple[int, ...], *, unknown: bool
) -> None:
    """Its partition goes on without it, and fleet windows say that somebody is missing."""
    end = BASE + 3 * SECOND
    emission = RowProcessor("busy").emission([Record((Row(BASE, "q", "t", (1, 2)),), end)])
    (progress,) = emission.progress
    aside = replace(progress, set_aside_us=tuple(end - each for each in behind))
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        store.apply(replace(emission, progress=(aside,)))
        assert store.load_progress() == {"busy": aside}
        with store.cursor() as cursor:
            found = cursor.execute(
                "SELECT coverage IS NULL FROM windows WHERE window_kind = 'time'"
                " AND size = 1000000 AND layer = 0 AND scope_kind = 'all'"
            ).fetchall()
    assert found == [(unknown,)]
