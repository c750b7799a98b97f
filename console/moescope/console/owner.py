"""The embedded owner: processor, store, export, jobs and commands of one data directory."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from moescope.console.changes import Order
from moescope.console.fleet_work import FleetWork, WithoutLive
from moescope.console.opened_store import MINUTE_S, opened_store
from moescope.console.output import note
from moescope.console.places import log_root
from moescope.console.spool.folder import SpoolFolder
from moescope.console.spool.server import SpoolServer
from moescope.console.working import carry_out
from moescope.core.clock import SystemClock
from moescope.core.self_metrics import SelfMetrics
from moescope.core.settings import without_kafka
from moescope.processors.config import WindowConfig
from moescope.processors.pipeline import Pipeline
from moescope.processors.pipeline_metrics import PipelineMetrics
from moescope.processors.sources.batch_log import BatchLogSource
from moescope.storage.errors import StoreInUseError, StoreWriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self

    from moescope.console.opened_store import OpenedStore
    from moescope.core.settings import Settings
    from moescope.processors.pipeline import PipelineTotals

HOUR_S = 3600.0
COMMAND_SECONDS = 5.0
RETRY_SECONDS = 0.2
EXPORT_REST = 9
"""Pause after an export in multiples of what it took."""


class Owner:
    """Opens the store, rolls batch logs up into it, and does all that only its owner can do.

    Args:
        settings: Name the data directory and everything else.
        on_commit: Called after each commit.
        metrics: Told what it does.
        uses_kafka: Whether it is the owner of a fleet; others work without a broker, even where
            the settings name one. Live traffic then comes from there, and not from batch logs of
            this machine, which an agent ships.
        command_seconds: How long a command that has the store open for a moment is waited for.
    """

    def __init__(
        self,
        settings: Settings,
        on_commit: Callable[[PipelineTotals], None] | None = None,
        *,
        metrics: SelfMetrics | None = None,
        uses_kafka: bool = False,
        command_seconds: float = COMMAND_SECONDS,
    ) -> None:
        self._settings = settings if uses_kafka else without_kafka(settings)
        self._uses_kafka = uses_kafka
        self._command_seconds = command_seconds
        self._on_commit = on_commit
        self._metrics = SelfMetrics() if metrics is None else metrics
        self._closing = ExitStack()
        self._fleet: FleetWork | None = None
        self._stop_export = threading.Event()
        self._export_failure: BaseException | None = None

    def __enter__(self) -> Self:
        """Open the store (and take its lock)."""
        settings, directory = self._settings, self._settings.data_directory
        directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opening:
            self.parts = opening.enter_context(
                _opened_for_long(settings, self._metrics, self._command_seconds)
            )
            self.exporter = self.parts.exporter
            self._receivers = self.parts.receivers()
            source = opening.enter_context(BatchLogSource(log_root(directory)))
            self.pipeline = Pipeline(
                WithoutLive(source) if self._uses_kafka else source,
                self.parts.store,
                self.parts.finisher,
                WindowConfig.from_settings(settings),
                commit_interval=settings["processor.commit_interval"],
                commit_records=settings["processor.commit_records"],
                on_commit=self._on_commit,
                metrics=PipelineMetrics(self._metrics, reads_topic=False),
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

    @property
    def trouble(self) -> str:
        """Why nothing is stored, or no live traffic comes at present; empty: nothing is wrong."""
        return self.parts.store.trouble or ("" if self._fleet is None else self._fleet.trouble)

    def run(
        self,
        *,
        until_idle: bool = False,
        stop: threading.Event | None = None,
        resets_processors: bool = False,
    ) -> PipelineTotals:
        """Process records, with export, commands and jobs beside it.

        Args:
            until_idle: End when all is read; jobs keep to their schedule in other runs only.
            stop: Ends it when it is set.
            resets_processors: Of a fleet: let its processors go on from what is stored first.

        Raises:
            MoescopeError: What the pipeline, the store or the export raised.
        """
        stop = stop or threading.Event()
        exporting = threading.Thread(target=self._export, name="moescope-export", daemon=True)
        self._stop_export.clear()
        exporting.start()
        try:
            # What people and schedules ask for ends before the last export, which shows it.
            with ExitStack() as beside:
                beside.enter_context(self._delivery())
                if not until_idle and self._settings["jobs.enabled"]:
                    beside.callback(_started_scheduler(self.parts))
                beside.enter_context(self._commands())
                fleet = (
                    FleetWork(self.parts, self._metrics, resets_processors=resets_processors)
                    if self._uses_kafka
                    else None
                )
                self._fleet = fleet
                if fleet is not None and not until_idle:
                    beside.enter_context(fleet.running(stop))
                self.pipeline.run(until_idle=until_idle, stop=stop)
                if fleet is not None and until_idle:
                    fleet.drain(stop)
        finally:
            self._stop_export.set()
            exporting.join()
        self.exporter.compact("minute")
        if self._export_failure is not None:
            raise self._export_failure
        return self.pipeline.totals

    @contextmanager
    def _delivery(self) -> Iterator[None]:
        """Send notifications as they are written, and at the end what the last commit wrote."""
        from moescope.jobs.notifications import Deliverer

        store, clock = self.parts.store, self.parts.clock
        deliverer = Deliverer(store, self._receivers, clock)
        deliverer.start()
        try:
            yield
        finally:
            try:
                if deliverer.stop():
                    Deliverer(store, self._receivers, clock).deliver_once()
            except Exception as error:  # noqa: BLE001 (an owner that ends well stays well)
                note(f"notifications wait for the next owner: {error}")

    def _commands(self) -> SpoolServer:
        def execute(request: dict[str, Any]) -> dict[str, Any]:
            return carry_out(Order.of_document(request), self.parts)

        return SpoolServer(self._settings.data_directory, execute, self.parts.clock, note)

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
                if self._export_failure is None and not isinstance(failure, StoreWriteError):
                    note(f"export failed, trying again: {failure}")
                self._export_failure = failure
            # While a backlog is read each export is large: commits keep most of the machine.
            pause = max(interval, EXPORT_REST * (clock.monotonic() - now))


@contextmanager
def _opened_for_long(
    settings: Settings, metrics: SelfMetrics, command_seconds: float
) -> Iterator[OpenedStore]:
    """Open the store; a command that has it open for a moment is waited for, an owner is not."""
    clock = SystemClock()
    give_up = clock.monotonic() + command_seconds
    with ExitStack() as opening:
        while True:
            try:
                parts = opening.enter_context(
                    opened_store(settings, closes_windows=True, metrics=metrics)
                )
                break
            except StoreInUseError:
                is_owned = SpoolFolder(settings.data_directory).is_served()
                if is_owned or clock.monotonic() >= give_up:
                    raise
                clock.sleep(RETRY_SECONDS)
        yield parts


def _started_scheduler(parts: OpenedStore) -> Callable[[], None]:
    """Start the jobs' schedules; returns what ends them."""
    from moescope.jobs.scheduler.scheduler import Scheduler

    scheduler = Scheduler(parts.runner, parts.clock, note)
    scheduler.start()
    return scheduler.close
