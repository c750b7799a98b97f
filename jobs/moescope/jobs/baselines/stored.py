"""Baselines in the store: added, read, never changed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from moescope.core.clock import SystemClock
from moescope.core.errors import InputError
from moescope.jobs.baselines.selection import Baseline
from moescope.storage.control import insert_rows

if TYPE_CHECKING:
    import duckdb

    from moescope.core.clock import Clock
    from moescope.storage.store import Store


def store_baseline(
    store: Store, baseline: Baseline, *, author: str, reason: str, clock: Clock | None = None
) -> Baseline:
    """Store a selection as the next version of its name.

    Args:
        store: The owner's.
        baseline: Its own version does not matter.
        author: Who vouches for it.
        reason: Why.
        clock: For `created_at`.

    Returns:
        The baseline with its version.
    """
    now_us = (clock or SystemClock()).now_us()

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> Baseline:
        row = connection.execute(
            "SELECT coalesce(max(version), 0) + 1 FROM baselines WHERE baseline = ?",
            [baseline.name],
        ).fetchone()
        numbered = replace(baseline, version=int(row[0]) if row else 1)
        values = {
            "baseline": numbered.name,
            "version": numbered.version,
            "created_at": now_us,
            "author": author,
            "reason": reason,
            "selection_json": json.dumps(numbered.to_json()),
        }
        insert_rows(connection, "baselines", [values], commit_id)
        return numbered

    return store.change(
        change,
        author=author,
        action="baseline create",
        subject=baseline.name,
        reason=reason,
        detail=baseline.to_json(),
    )


def read_baseline(
    cursor: duckdb.DuckDBPyConnection, name: str, version: int | None = None
) -> Baseline:
    """A stored baseline, by default its newest version.

    Raises:
        InputError: There is none of that name and version.
    """
    row = cursor.execute(
        "SELECT version, selection_json FROM baselines WHERE baseline = ? AND (?::INTEGER IS NULL"
        " OR version = ?) ORDER BY version DESC LIMIT 1",
        [name, version, version],
    ).fetchone()
    if row is None:
        which = f"baseline {name!r}" + ("" if version is None else f" version {version}")
        raise InputError(
            f"There is no {which}.",
            next_step="`moescope baseline list` shows them; `moescope baseline create` makes one.",
        )
    return Baseline.from_json(name, row[0], json.loads(row[1]))
