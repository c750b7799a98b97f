"""What every long-running component wraps itself in."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.console.watch.health import Health
from moescope.console.watch.watcher import HealthWatcher
from moescope.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moescope.console.watch.health import Component, HealthReport
    from moescope.core.clock import Clock
    from moescope.core.self_metrics import SelfMetrics
    from moescope.core.settings import Settings


@dataclass(frozen=True, slots=True)
class Watch:
    """What is being served.

    Attributes:
        address: Host and port of `/metrics` and `/healthz`; None where there is none.
    """

    address: tuple[str, int] | None
    _watcher: HealthWatcher

    @property
    def latest(self) -> HealthReport:
        """The newest report of the component's health."""
        return self._watcher.latest

    def report(self) -> None:
        """Report now, after a change that others should not wait two seconds for."""
        self._watcher.report()


@contextmanager
def serving(
    settings: Settings,
    metrics: SelfMetrics,
    component: Component,
    *,
    status: Callable[[], Health] = Health,
    clock: Clock | None = None,
) -> Iterator[Watch]:
    """Keep a component's health file, and serve its metrics where `watch.port` says so.

    Args:
        settings: `data.directory`, `watch.host` and `watch.port`.
        metrics: The values of this process.
        component: `agent`, `processor` or `store`.
        status: How the component is. It is asked every two seconds from another thread, so it
            should look at what is known and wait for nothing; a component whose own loop hangs
            is found only where this looks at how far that loop has got.
        clock: Wall clock of the reports.

    Raises:
        WatchAddressError: The port is taken, or the address is not this machine's.
        OSError: The data directory cannot be made.
    """
    watcher = HealthWatcher(
        settings.data_directory, metrics, component, status, clock or SystemClock()
    )
    with ExitStack() as opened:
        address = None
        if settings["watch.port"]:
            # 0.1 s of imports that a process without a port does not need.
            from moescope.console.watch.exposition import Exposition
            from moescope.console.watch.http_server import WatchServer

            exposition = Exposition(metrics, component)
            server = WatchServer(
                settings["watch.host"], settings["watch.port"], exposition, watcher
            )
            opened.enter_context(watcher)
            address = opened.enter_context(server).address
        else:
            opened.enter_context(watcher)
        yield Watch(address, watcher)
