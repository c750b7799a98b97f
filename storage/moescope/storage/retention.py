"""Old rows go: by event time, red windows and what alerts say last."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

from moescope.core.emission import LIVE_DOMAIN
from moescope.core.tables import TABLE_BY_NAME
from moescope.storage.control import replace_rows
from moescope.storage.export.layout import is_partitioned
from moescope.storage.shared.trailing import HISTORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb

    from moescope.storage.store import Store

HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US
BATCH_ROWS: Final = 200_000
"""Rows that one transaction removes; emissions wait meanwhile."""

_LIVE_LANES = f"lane IN (SELECT lane FROM lanes WHERE domain = '{LIVE_DOMAIN}')"
_LIVE_PARTITIONS = (
    f"partition NOT IN (SELECT partition FROM offsets WHERE domain <> '{LIVE_DOMAIN}')"
)
_NO_IMPORT_RUNS = (
    f"NOT EXISTS (SELECT 1 FROM offsets WHERE domain <> '{LIVE_DOMAIN}' AND NOT sealed)"
)
_UNUSED_REFERENCE = f"""
    reference_id NOT IN (
        SELECT trailing_reference FROM windows
        WHERE trailing_reference IS NOT NULL AND close_time < {{end}} + INTERVAL 1 DAY
    ) AND reference_id NOT IN (
        SELECT reference_id FROM reference_distributions
        QUALIFY row_number() OVER (
            PARTITION BY lane, phase, partition ORDER BY effective_from DESC
        ) <= {HISTORY + 1}
    )
"""

_FOLLOWED = """
    EXISTS (
        SELECT 1 FROM placements AS later
        WHERE later.domain = placements.domain AND later.model = placements.model
            AND later.revision = placements.revision AND later.node = placements.node
            AND later.layer = placements.layer
            AND later.effective_from > placements.effective_from AND later.effective_from < {end}
    )
"""


@dataclass(frozen=True, slots=True)
class _Rule:
    """Rows of a table that go once they are old.

    Attributes:
        table: Its name.
        lifetime: Which of the two lifetimes holds.
        condition: SQL that is true for rows that may go; `{end}` is the end of the lifetime.
        time: The column that dates a row.
    """

    table: str
    lifetime: Literal["windows", "red"]
    condition: str
    time: str = ""

    @property
    def time_column(self) -> str:
        return self.time or str(TABLE_BY_NAME[self.table].time_column)


# An import is a deliberate act, and its event times say nothing about its age: it stays.
_RULES: Final = (
    _Rule("windows", "windows", f"domain = '{LIVE_DOMAIN}' AND level <> 'red'"),
    _Rule("windows", "red", f"domain = '{LIVE_DOMAIN}'"),
    _Rule("token_window_keys", "windows", _NO_IMPORT_RUNS),
    # Those of timeless windows are at the epoch.
    _Rule("metric_histograms", "windows", f"minute > TIMESTAMP 'epoch' AND {_LIVE_LANES}"),
    _Rule("exceedances", "windows", _LIVE_LANES),
    _Rule("reference_distributions", "windows", f"{_LIVE_LANES} AND {_UNUSED_REFERENCE}"),
    _Rule("placements", "red", f"domain = '{LIVE_DOMAIN}' AND {_FOLLOWED}"),
    _Rule("batches", "windows", _LIVE_PARTITIONS),
    _Rule("dead_letters", "windows", _LIVE_PARTITIONS),
    _Rule("patterns", "red", f"ended_at < {{end}} AND {_LIVE_LANES}"),
    _Rule("alerts", "red", f"resolved_at < {{end}} AND {_LIVE_LANES}"),
    _Rule("alert_events", "red", "alert NOT IN (SELECT alert FROM alerts)"),
    _Rule("outbox", "red", "coalesce(delivered_at, given_up_at) < {end}", time="created_at"),
    _Rule("job_runs", "red", "state <> 'running'", time="scheduled_for"),
)


def remove_old(
    store: Store,
    *,
    now_us: int,
    windows_days: int,
    red_days: int,
    author: str = "job:retention",
    batch_rows: int = BATCH_ROWS,
) -> dict[str, int]:
    """Remove rows whose lifetime is over, in transactions of bounded size.

    Lifetimes end at whole hours. Rows without a time, rows of imports, open alerts, undelivered
    notifications and the newest references stay. What was removed has one `audit` row.

    Args:
        store: Of the owner; emissions may be applied meanwhile.
        now_us: The greatest live watermark; `NO_TIME` removes nothing.
        windows_days: Lifetime of windows that are not red, histograms and ingest accounts.
        red_days: Lifetime of red windows, alerts and what belongs to them, and of job runs; at
            least `windows_days`.
        author: On whose behalf.
        batch_rows: Most rows of one transaction, apart from many at one instant.

    Returns:
        Table → rows removed, where there were any.
    """
    days = {"windows": windows_days, "red": max(red_days, windows_days)}
    removed: dict[str, int] = {}
    for rule in _RULES:
        end_us = (now_us - days[rule.lifetime] * DAY_US) // HOUR_US * HOUR_US
        if end_us <= 0:
            continue
        number = sum(_remove(store, rule, end_us, author, batch_rows))
        if number:
            removed[rule.table] = removed.get(rule.table, 0) + number
    if removed:
        store.change(
            lambda *_: None, author=author, action="retention", reason="lifetimes of the settings",
            detail={"windows_days": windows_days, "red_days": days["red"], "removed": removed},
        )  # fmt: skip
    return removed


def _remove(store: Store, rule: _Rule, end_us: int, author: str, batch_rows: int) -> Iterator[int]:
    condition = rule.condition.format(end=f"make_timestamp({end_us})")
    for low_us, high_us in _batches(store, rule, condition, end_us, batch_rows):
        within = (
            f"{rule.time_column} >= make_timestamp({low_us})"
            f" AND {rule.time_column} < make_timestamp({high_us})"
        )
        sql = f"DELETE FROM {rule.table} WHERE {within} AND {condition}"

        def delete(
            connection: duckdb.DuckDBPyConnection,
            commit_id: int,
            sql: str = sql,
            high_us: int = high_us,
        ) -> int:
            (number,) = connection.execute(sql).fetchall()[0]
            # Readers of the export lose whole hours at once, not each slice of one.
            if is_partitioned(TABLE_BY_NAME[rule.table]) and high_us % HOUR_US == 0:
                _mark(connection, rule.table, high_us, commit_id)
            return int(number)

        yield store.change(delete, author=author, action="retention", audit=False)


def _batches(
    store: Store, rule: _Rule, condition: str, end_us: int, batch_rows: int
) -> Iterator[tuple[int, int]]:
    """Spans of time with at most so many rows that go: several hours, or a part of one."""
    with store.cursor() as cursor:
        hours = cursor.execute(
            f"SELECT epoch_us(date_trunc('hour', {rule.time_column})) AS hour, count(*)"
            f" FROM {rule.table} WHERE {rule.time_column} < make_timestamp({end_us})"
            f" AND {condition} GROUP BY hour ORDER BY hour"
        ).fetchall()
    low, rows = None, 0
    for number, (hour, count) in enumerate(hours):
        low = hour if low is None else low
        rows += count
        following = hours[number + 1][1] if number + 1 < len(hours) else 0
        if number + 1 < len(hours) and rows + following <= batch_rows:
            continue
        if rows > batch_rows:
            yield from pairwise(_slices(hour, -(-rows // batch_rows)))
        else:
            yield low, hour + HOUR_US
        low, rows = None, 0


def _slices(hour_us: int, parts: int) -> Sequence[int]:
    return [hour_us + HOUR_US * part // parts for part in range(parts + 1)]


def _mark(
    connection: duckdb.DuckDBPyConnection, table: str, before_us: int, commit_id: int
) -> None:
    """Tell the export that hours before a time have lost rows."""
    (known,) = connection.execute(
        "SELECT max(epoch_us(removed_before)) FROM retention_marks WHERE table_name = ?", [table]
    ).fetchall()[0]
    row = {"table_name": table, "removed_before": max(before_us, known or before_us)}
    replace_rows(connection, "retention_marks", [row], commit_id)
