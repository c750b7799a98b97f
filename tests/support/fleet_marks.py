"""How a fleet's store may differ from that of one process alone, and how it must not.

Where a partition is set aside, windows close without it, and say so. What comes late finishes
them again, for ten minutes; only what comes later is left out, and counted as late.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
from support.stored import NOT_A_RESULT, WINDOW_COLUMNS, tables

from moescope.core.tables import TABLE_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Key = tuple[Any, ...]

KEY_COLUMNS = WINDOW_COLUMNS[:11]
MAY_FOLLOW = {"metric_histograms", "windows", "late"}
"""What may differ where windows are marked: windows are compared one by one."""


class WindowRow(NamedTuple):
    """A row of the `windows` table.

    Attributes:
        is_marked: Whether it says that somebody was missing.
        values: All that it holds, in words.
    """

    is_marked: bool
    values: str


class Difference(NamedTuple):
    """Between a fleet's store and that of one process alone.

    Attributes:
        late_rows: Rows that the fleet counted as too late, once for each window.
        marked: Window rows that differ and say that somebody was missing.
        unexplained: Whatever else differs, in words.
    """

    late_rows: int
    marked: int
    unexplained: tuple[str, ...]


def difference_of(store: Path, alone: Path) -> Difference:
    """Compare every table of two stores."""
    mine, other = tables(store), tables(alone)
    windows = different_windows(window_rows(store), window_rows(alone))
    unexplained = list(windows.unexplained)
    for name, rows in mine.items():
        if windows.marked and name in MAY_FOLLOW:
            continue
        left, right = Counter(rows), Counter(other[name])
        unexplained += [f"{name} - {row}" for row in (left - right).elements()]
        unexplained += [f"{name} + {row}" for row in (right - left).elements()]
    with duckdb.connect(str(store), read_only=True) as connection:
        (late,) = connection.execute("SELECT sum(late_rows) FROM domains").fetchall()[0]
    return Difference(int(late or 0), windows.marked, tuple(unexplained))


def different_windows(mine: Mapping[Key, WindowRow], alone: Mapping[Key, WindowRow]) -> Difference:
    """Windows that are not the same: those that are marked, and those that are not."""
    marked = 0
    unexplained = []
    for key in mine.keys() | alone.keys():
        one, other = mine.get(key), alone.get(key)
        if one is not None and other is not None and one.values == other.values:
            continue
        if one is not None and one.is_marked:
            marked += 1
        else:
            unexplained.append(f"window {key}: {one} for {other}")
    return Difference(0, marked, tuple(unexplained))


def window_rows(path: Path) -> dict[Key, WindowRow]:
    """Every window of a store by the key of `support.stored.stored_windows`."""
    columns = [c for c in TABLE_BY_NAME["windows"].column_names if c not in NOT_A_RESULT]
    query = (
        f"SELECT {', '.join(KEY_COLUMNS)}, coverage IS NULL AND window_kind = 'time', "
        f"{', '.join(columns)} FROM windows"
    )
    with duckdb.connect(str(path), read_only=True) as connection:
        rows = connection.execute(query).fetchall()
    width = len(KEY_COLUMNS)
    return {row[:width]: WindowRow(bool(row[width]), repr(row[width + 1 :])) for row in rows}
