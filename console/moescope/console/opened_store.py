"""The store of a data directory with all that works on it: thresholds, alerts, export, jobs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.console.output import note
from moescope.core.clock import SystemClock
from moescope.core.emission import LIVE_DOMAIN
from moescope.core.errors import InternalError
from moescope.core.thresholds import ThresholdBook
from moescope.jobs.scheduler.catalogue import declared_jobs
from moescope.jobs.scheduler.job import JobContext
from moescope.jobs.scheduler.runner import JobRunner
from moescope.storage.export import Exporter
from moescope.storage.places import export_folder, store_file
from moescope.storage.shared import WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moescope.core.clock import Clock
    from moescope.core.emission import (
        CommitFacts,
        CommitHook,
        FinishedWindows,
        Finisher,
        Histograms,
        WindowGroup,
    )
    from moescope.core.self_metrics import SelfMetrics
    from moescope.core.settings import Settings
    from moescope.jobs.notifications import Receiver

MINUTE_S = 60.0
SECOND_US = 1_000_000
BACKLOG_US = 120 * SECOND_US
"""So far behind the wall clock, what fires is history and is not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedStore:
    """A store and what works on it.

    Attributes:
        book: Its thresholds in force.
        finisher: Finishes windows, and judges them with the store's thresholds.
        runner: Runs its jobs.
    """

    settings: Settings
    clock: Clock
    store: Store
    book: ThresholdBook
    finisher: Finisher
    exporter: Exporter
    runner: JobRunner

    def receivers(self) -> tuple[Receiver, ...]:
        """Who gets notifications; those of the log become lines on standard error.

        Raises:
            SettingsError: The webhook's URL or secret file cannot be used.
        """
        from moescope.console.alert_lines import show_alert_lines
        from moescope.jobs.notifications import receivers_from

        show_alert_lines()
        return receivers_from(self.settings, self.clock)


def refuse_windows(group: WindowGroup) -> tuple[FinishedWindows, Histograms]:
    """A finisher for commands, which would wait for compiled kernels that they do not need."""
    raise InternalError(f"A command was asked to finish {len(group)} windows.")


@contextmanager
def opened_store(
    settings: Settings,
    *,
    closes_windows: bool,
    log: Callable[[str], None] = note,
    metrics: SelfMetrics | None = None,
) -> Iterator[OpenedStore]:
    """Open the store of the data directory as its owner.

    Args:
        settings: Name the data directory and everything else.
        closes_windows: Whether emissions will be applied; without that, opening is quicker.
        log: Told of what people should know.
        metrics: Of this process.

    Raises:
        StoreInUseError: Another process owns it.
        StoreUnreadableError: The file cannot be opened.
    """
    clock, directory = SystemClock(), settings.data_directory
    book = ThresholdBook()
    finisher: Finisher = refuse_windows
    hook: CommitHook | None = None
    if closes_windows:
        from moescope.processors.finish import WindowFinisher

        finisher, hook = (
            WindowFinisher(book, minimum_coverage=settings["store.minimum_coverage"]),
            _red_lines(settings, book, clock, metrics),
        )
    with Store(
        store_file(directory),
        finisher,
        WindowShapes(time=settings["windows.time"], step=settings["windows.step"]),
        minimum_coverage=settings["store.minimum_coverage"],
        clock=clock,
        book=book,
        hook=hook,
        metrics=metrics,
        log=note if closes_windows else None,
    ) as store:
        exporter = Exporter(
            store,
            export_folder(directory),
            clock,
            grace_seconds=2 * settings["sql.timeout"] + MINUTE_S,
        )
        context = JobContext(store=store, settings=settings, clock=clock, exporter=exporter)
        yield OpenedStore(
            settings=settings,
            clock=clock,
            store=store,
            book=book,
            finisher=finisher,
            exporter=exporter,
            runner=JobRunner(declared_jobs(settings), context, log),
        )


def _red_lines(
    settings: Settings, book: ThresholdBook, clock: Clock, metrics: SelfMetrics | None
) -> CommitHook:
    from moescope.jobs.alerts import RedLines
    from moescope.jobs.notifications import receiver_names

    def reads_backlog(facts: CommitFacts) -> bool:
        # Without live traffic, what an import or a simulation reaches is the newest there is.
        reached_us = facts.reached_us.get(LIVE_DOMAIN)
        if reached_us is None:
            reached_us = max(facts.reached_us.values(), default=None)
        is_behind = reached_us is not None and reached_us < clock.now_us() - BACKLOG_US
        if metrics is not None:
            metrics.set("moescope_store_catching_up", float(is_behind))
        return is_behind

    return RedLines(
        book,
        clock,
        receiver_names(settings),
        no_data_after_us=round(settings["alerts.no_data_after"] * SECOND_US),
        historic=reads_backlog,
    )
