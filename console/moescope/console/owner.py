"""The embedded owner: processor, store and export of one data directory in one process."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from moescope.console.output import note
from moescope.console.places import log_root
from moescope.core.clock import SystemClock
from moescope.processors.config import WindowConfig
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.batch_log import BatchLogSource
from moescope.storage.export import Exporter
from moescope.storage.places import export_folder, store_file
from moescope.storage.shared import WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from moescope.core.emission import Finisher
    from moescope.core.settings import Settings
    from moescope.processors.pipeline import PipelineTotals

MINUTE_S = 60.0
HOUR_S = 3600.0
EXPORT_REST = 9
"""Pause after an export in multiples of what it took."""


def open_store(settings: Settings, finisher: Finisher) -> Store:
    """Open the store of the data directory as its owner.

    Raises:
        StoreInUseError: Another process owns it.
        StoreUnreadableError: The file cannot be opened.
    """
    return Store(
        store_file(settings.data_directory),
        finisher,
        WindowShapes(time=settings["windows.time"], step=settings["windows.step"]),
        minimum_coverage=settings["store.minimum_coverage"],
    )


class Owner:
    """Opens the store, rolls batch logs up into it and exports closed windows.

    Args:
        settings: Name the data directory and everything else.
        on_commit: Called after each commit.
    """

    def __init__(
        self, settings: Settings, on_commit: Callable[[PipelineTotals], None] | None = None
    ) -> None:
        self._settings = settings
        self._on_commit = on_commit
        self._closing = ExitStack()
        self._stop_export = threading.Event()
        self._export_failure: BaseException | None = None

    def __enter__(self) -> Self:
        """Open the store (and take its lock)."""
        settings, directory = self._settings, self._settings.data_directory
        directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opening:
            finisher = WindowFinisher()
            store = opening.enter_context(open_store(settings, finisher))
            source = opening.enter_context(BatchLogSource(log_root(directory)))
            self.exporter = Exporter(
                store,
                export_folder(directory),
                SystemClock(),
                grace_seconds=2 * settings["sql.timeout"] + MINUTE_S,
            )
            self.pipeline = Pipeline(
                source,
                store,
                finisher,
                WindowConfig.from_settings(settings),
                commit_interval=settings["processor.commit_interval"],
                commit_records=settings["processor.commit_records"],
                on_commit=self._on_commit,
            )
            self._closing = opening.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close everything."""
        self._closing.close()

    def run(
        self, *, until_idle: bool = False, stop: threading.Event | None = None
    ) -> PipelineTotals:
        """Process records, exporting beside it; with `until_idle` end when all is read.

        Raises:
            MoescopeError: What the pipeline, the store or the export raised.
        """
        exporting = threading.Thread(target=self._export, name="moescope-export", daemon=True)
        exporting.start()
        try:
            self.pipeline.run(until_idle=until_idle, stop=stop)
        finally:
            self._stop_export.set()
            exporting.join()
        self.exporter.compact("minute")
        if self._export_failure is not None:
            raise self._export_failure
        return self.pipeline.totals

    def _export(self) -> None:
        clock = SystemClock()
        minute = hour = clock.monotonic()
        interval = pause = self._settings["export.interval"]
        while not self._stop_export.wait(pause):
            now = clock.monotonic()
            try:
                if now - hour >= HOUR_S:
                    self.exporter.compact("hour")
                    hour = minute = now
                elif now - minute >= MINUTE_S:
                    self.exporter.compact("minute")
                    minute = now
                else:
                    self.exporter.export_tail()
                self._export_failure = None
            except Exception as failure:  # noqa: BLE001 (kept: the next interval tries again)
                if self._export_failure is None:
                    note(f"export failed, trying again: {failure}")
                self._export_failure = failure
            # While a backlog is read each export is large: commits keep most of the machine.
            pause = max(interval, EXPORT_REST * (clock.monotonic() - now))
