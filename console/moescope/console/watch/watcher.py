"""The thread that asks a component how it is, and reports it."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from moescope.console.output import note
from moescope.console.watch.health import Health, HealthReport, HealthStatus
from moescope.console.watch.health_files import health_file, remove_leftovers, write_report
from moescope.console.watch.processes import birth_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from moescope.console.watch.health import Component
    from moescope.core.clock import Clock
    from moescope.core.self_metrics import SelfMetrics

SECONDS: Final = 2.0
STALE_SECONDS: Final = 30.0
"""A report this old says that whoever wrote it hangs, or has no room on its disk."""
_ROOM_METRICS: Final = {
    "agent": "moescope_agent_free_bytes",
    "store": "moescope_store_free_bytes",
}


class HealthWatcher:
    """Takes a component's health every two seconds, and keeps its health file.

    Args:
        directory: The data directory.
        metrics: Gets the room on its disk, where the component has a metric for it.
        component: Which one.
        status: How the component is; called from a thread of its own, and should not wait for
            anything. Whatever it raises counts as `failing`.
        clock: Wall clock of the reports.
    """

    def __init__(
        self,
        directory: Path,
        metrics: SelfMetrics,
        component: Component,
        status: Callable[[], Health],
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._metrics = metrics
        self._component = component
        self._status = status
        self._clock = clock
        self._identity = (socket.gethostname(), os.getpid(), birth_of(os.getpid()))
        # What only looks at reports does without this import.
        from importlib.metadata import version

        self._version = version("moescope")
        self._started_at_us = clock.now_us()
        self._latest = self._report(Health(HealthStatus.STARTING))
        self._is_told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moescope-health", daemon=True)

    @property
    def latest(self) -> HealthReport:
        """The newest report."""
        return self._latest

    @property
    def is_well(self) -> bool:
        """Whether the newest report is recent and says nothing bad."""
        age_us = self._clock.now_us() - self._latest.written_at_us
        return self._latest.is_well and age_us <= STALE_SECONDS * 1e6

    def __enter__(self) -> Self:
        """Write the first report at once, then one every two seconds."""
        self._directory.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._directory, self._component, self._identity[0], self._clock.now_us())
        self.report()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and take the file away: an ended component has no health."""
        self._stop.set()
        self._thread.join(SECONDS)
        with suppress(OSError):
            health_file(self._directory, self._latest).unlink(missing_ok=True)

    def report(self) -> None:
        """Ask, and write what the component says."""
        try:
            health = self._status()
        except Exception as error:  # noqa: BLE001 (whoever cannot say how it is, is not well)
            health = Health(HealthStatus.FAILING, f"its status cannot be told: {error!r}")
        self._latest = report = self._report(health)
        try:
            if room_metric := _ROOM_METRICS.get(self._component):
                self._metrics.set(room_metric, shutil.disk_usage(self._directory).free)
            write_report(self._directory, report)
        except OSError as error:
            # The old file goes stale, which is what its readers have to see.
            if not self._is_told:
                note(f"the health file cannot be written, trying again: {error}")
            self._is_told = True
        else:
            self._is_told = False

    def _report(self, health: Health) -> HealthReport:
        host, pid, birth = self._identity
        return HealthReport(
            component=self._component,
            host=host,
            pid=pid,
            birth=birth,
            version=self._version,
            started_at_us=self._started_at_us,
            written_at_us=self._clock.now_us(),
            health=health,
        )

    def _run(self) -> None:
        while not self._stop.wait(SECONDS):
            self.report()
