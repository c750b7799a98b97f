"""The routing topic into a store by a processor of a group and the owner of the store."""

from __future__ import annotations

import shutil
import threading
from itertools import count
from typing import TYPE_CHECKING

from benchmarks.broker import fleet_settings
from benchmarks.rolling import EVERY, forget_cursors, shapes
from moescope.core.clock import SystemClock
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.finish import WindowFinisher
from moescope.storage.deltas import DeltasReader
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.kafka_broker import KafkaBroker

    from benchmarks.logs import Log
    from benchmarks.processor_process import ProcessorProcess
    from moescope.core.settings import Settings

_numbers = count()


class FleetRolling:
    """Every kind of window, with `store.source` = `deltas`.

    Args:
        broker: Where the topics are; each run has its own.
        ship: Ships a log to the topics of some settings.
        log: What is rolled up.
        processor: Does so.
        folder: Of the store; emptied by `prepare`.
    """

    def __init__(
        self,
        broker: KafkaBroker,
        ship: Callable[[Settings, Log], None],
        log: Log,
        processor: ProcessorProcess,
        folder: Path,
    ) -> None:
        self._broker = broker
        self._ship = ship
        self._log = log
        self._processor = processor
        self._folder = folder
        self._settings: Settings | None = None
        self.processor_cpu: list[float] = []

    def prepare(self) -> None:
        """Topics with the records, of which nothing was processed yet."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._settings = fleet_settings(
            self._broker,
            f"fleet-{next(_numbers)}",
            **{"data.directory": str(self._folder), "store.source": "deltas"},
        )
        forget_cursors(self._log.root)
        self._ship(self._settings, self._log)

    def run(self) -> None:
        """From joining the group to the commit that holds the last record."""
        assert self._settings is not None  # noqa: S101 (prepared)
        began = self._processor.cpu_seconds()
        self._processor.begin(self._settings)
        stop = threading.Event()
        with Store(self.store_file, WindowFinisher(), shapes(EVERY)) as store:

            def look() -> None:
                cursor = store.cursor()
                row = cursor.execute("SELECT sum(emitted_to) FROM offsets").fetchone()
                cursor.close()
                if row is not None and row[0] == self._log.records:
                    stop.set()

            DeltasReader(
                self._settings, store, SelfMetrics(), SystemClock(), print, on_applied=look
            ).run(stop)
        self._processor.end()
        self.processor_cpu.append(self._processor.cpu_seconds() - began)

    @property
    def store_file(self) -> Path:
        """Where the rows are."""
        return self._folder / "moescope.duckdb"
