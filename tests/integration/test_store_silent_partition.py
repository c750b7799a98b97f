from __future__ import annotations

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
