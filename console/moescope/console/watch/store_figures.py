"""What the store's tables say of moescope's own health, as metrics of the owner."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from moescope.core.clock import NO_TIME
from moescope.core.emission import LIVE_DOMAIN
from moescope.storage.errors import StoreWriteError
from moescope.storage.places import store_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from moescope.core.clock import Clock
    from moescope.core.self_metrics import SelfMetrics
    from moescope.storage.store import Store

# Only live traffic: its watermark is the one that has to follow the clock, and each import has a
# domain of its own, so that a label of them all would have no bound.
_WATERMARK_SQL: Final = "SELECT watermark_us FROM domains WHERE domain = ?"
_DEAD_LETTERS_SQL: Final = "SELECT reason, sum(records) FROM dead_letter_counts GROUP BY reason"
_ALERTS_SQL: Final = "SELECT state, count(*) FROM alerts WHERE state <> 'resolved' GROUP BY state"
_OUTBOX_SQL: Final = """
    SELECT count(*), epoch_us(min(created_at)) FROM outbox
    WHERE delivered_at IS NULL AND given_up_at IS NULL
"""
_JOBS_SQL: Final = """
    SELECT job, arg_max(state, scheduled_for) IN ('failed', 'abandoned') FROM job_runs GROUP BY job
"""


class StoreFigures:
    """Reads a few small tables with a cursor of its own.

    Args:
        store: Of this process, its owner.
        directory: The data directory.
        metrics: Of this process.
        clock: Wall clock, for the age of what waits.
    """

    def __init__(self, store: Store, directory: Path, metrics: SelfMetrics, clock: Clock) -> None:
        self._store = store
        self._file = store_file(directory)
        self._metrics = metrics
        self._clock = clock
        self._labels: dict[str, set[str]] = {}

    def take(self) -> None:
        """Set the metrics; those of its tables stay as they are while it cannot be opened.

        The store tells that itself.

        Raises:
            MoescopeError: The store cannot be read now.
            OSError: Its file cannot be looked at.
        """
        with suppress(StoreWriteError):
            self._take_from_tables()
        self._metrics.set("moescope_store_fencing_token", self._store.fencing_token)
        self._metrics.set("moescope_store_file_bytes", self._file_bytes())

    def _take_from_tables(self) -> None:
        metrics = self._metrics
        with closing(self._store.cursor()) as cursor:
            reached = cursor.execute(_WATERMARK_SQL, [LIVE_DOMAIN]).fetchone()
            dead_letters = cursor.execute(_DEAD_LETTERS_SQL).fetchall()
            alerts = cursor.execute(_ALERTS_SQL).fetchall()
            waiting, oldest_us = cursor.execute(_OUTBOX_SQL).fetchone() or (0, None)
            jobs = cursor.execute(_JOBS_SQL).fetchall()
        if reached and reached[0] > NO_TIME:
            metrics.set(
                "moescope_store_watermark_timestamp_seconds", reached[0] / 1e6, domain=LIVE_DOMAIN
            )
        age_seconds = 0.0 if oldest_us is None else (self._clock.now_us() - oldest_us) / 1e6
        metrics.set("moescope_store_waiting_notifications", waiting)
        metrics.set("moescope_store_oldest_waiting_notification_seconds", max(0.0, age_seconds))
        self._set_each("moescope_store_dead_letters", "reason", dead_letters)
        self._set_each("moescope_store_open_alerts", "state", alerts)
        self._set_each("moescope_store_job_failing", "name", jobs)

    def _set_each(self, metric: str, label: str, rows: Iterable[tuple[str, float]]) -> None:
        """Set one value per label; what has gone is 0 now, not what it was."""
        values = dict.fromkeys(self._labels.get(metric, ()), 0.0) | dict(rows)
        for text, value in values.items():
            self._metrics.set(metric, float(value), **{label: text})
        self._labels[metric] = set(values)

    def _file_bytes(self) -> int:
        """The log of changes goes into the file, and away, at each checkpoint."""
        changes = self._file.with_name(f"{self._file.name}.wal")
        return sum(path.stat().st_size for path in (self._file, changes) if path.exists())
