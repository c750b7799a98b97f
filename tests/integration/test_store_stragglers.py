"""Partitions that fall far behind at one stroke are waited for before windows close."""

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

from moescope.core.clock import ManualClock
from moescope.storage import Store
from moescope.storage.stragglers import PatientStore

if TYPE_CHECKING:
    from pathlib import Path

JUMP = 15 * MINUTE
"""Longer than late rows are taken."""


@pytest.mark.parametrize(
    ("away_s", "found"), [(6, [(2, 1)]), (12, [(1, 1)])], ids=["came back in time", "too late"]
)
def test_a_partition_that_comes_back_after_another_is_in_the_windows(
    tmp_path: Path, away_s: int, found: list[tuple[int, int]]
) -> None:
    """The first partition's heap does not close windows that the second's is part of."""
    first, second = RowProcessor("first"), RowProcessor("second")
    window = BASE - BASE % (5 * SECOND)
    rows = [Row(window + place, name, "t", (1, 2)) for place, name in enumerate("ab")]
    clock = ManualClock(BASE)
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as store:
        patient = PatientStore(store, clock)
        patient.apply(first.emission([Record((), window)]))
        patient.apply(second.emission([Record((), window)]))
        patient.apply(first.emission([Record((rows[0],), window + JUMP)]))
        for _ in range(away_s):
            clock.sleep(1)
            patient.apply(first.emission([Record((), window + JUMP + clock.now_us() - BASE)]))
        patient.apply(second.emission([Record((rows[1],), window + JUMP + clock.now_us() - BASE)]))
        with store.cursor() as cursor:
            windows = cursor.execute(
                "SELECT seen, row_version FROM windows WHERE window_kind = 'time'"
                " AND size = 1000000 AND layer = 0 AND scope_kind = 'all' AND start <= ?",
                [window],
            ).fetchall()
    assert windows == found
