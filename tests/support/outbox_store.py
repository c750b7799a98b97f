"""A real store with rows in its outbox; run as a program, delivers them once.

As a program: `outbox_store.py STORE_FILE URL`.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moescope.core.clock import ManualClock, SystemClock
from moescope.jobs.alerts.rows import outbox_row
from moescope.jobs.notifications import Deliverer, WebhookReceiver
from moescope.storage import Store
from moescope.storage.control import insert_rows
from moescope.storage.shared import WindowShapes

if TYPE_CHECKING:
    from moescope.core.emission import FinishedWindows, Histograms, WindowGroup

CREATED_US = 1_767_225_600_000_000


def _no_windows(group: WindowGroup) -> tuple[FinishedWindows, Histograms]:
    raise AssertionError(f"no window closes in here: {group}")


def open_store(path: Path) -> Store:
    """An owner of a store file."""
    return Store(path, _no_windows, WindowShapes(time=(), step=()))


def add(store: Store, *keys: str, receiver: str = "webhook", alert: str = "a") -> None:
    """Put notifications into the outbox."""
    rows = [
        {
            **outbox_row(key, receiver, alert, '{"state":"firing","key":"' + key + '"}'),
            "created_at": CREATED_US,
            "not_before": CREATED_US,
        }
        for key in keys
    ]
    store.change(
        lambda connection, commit_id: insert_rows(connection, "outbox", rows, commit_id),
        author="test",
        action="add",
        audit=False,
    )


def outbox(store: Store) -> list[dict[str, Any]]:
    """Rows of the outbox by key."""
    with closing(store.cursor()) as cursor:
        found = cursor.execute("SELECT * FROM outbox ORDER BY length(notification), notification")
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def clock_at(seconds: float) -> ManualClock:
    """A clock that many seconds after the rows were written."""
    return ManualClock(CREATED_US + round(seconds * 1e6))


if __name__ == "__main__":
    with open_store(Path(sys.argv[1])) as opened:
        receiver = WebhookReceiver(sys.argv[2], None, SystemClock())
        Deliverer(opened, [receiver], SystemClock()).deliver_once()
