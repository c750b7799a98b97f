"""The store of a data directory with all that works on it: thresholds, alerts, export, jobs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.console.output import note
from moescope.core.clock import SystemClock
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
    from moescope.core.emission import FinishedWindows, Finisher, Histograms, WindowGroup
    from moescope.core.settings import Settings

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedStore:
    """A store and what works on it.

    Attributes:
        finisher: Finishes windows, and judges them with the store's thresholds.
        runner: Runs its jobs.
    """

    settings: Settings
    clock: Clock
    store: Store
    finisher: Finisher
    exporter: Exporter
    runner: JobRunner


def closes_no_windows(book: ThresholdBook) -> Finisher:  # noqa: ARG001 (one signature)
    """For commands, which would wait for compiled kernels that they do not need."""

    def refuse(group: WindowGroup) -> tuple[FinishedWindows, Histograms]:
        raise InternalError(f"A command was asked to finish {len(group)} windows.")

    return refuse


@contextmanager
def opened_store(
    settings: Settings,
    make_finisher: Callable[[ThresholdBook], Finisher] = closes_no_windows,
    log: Callable[[str], None] = note,
) -> Iterator[OpenedStore]:
    """Open the store of the data directory as its owner.

    Args:
        settings: Name the data directory and everything else.
        make_finisher: From the thresholds in force, what finishes windows.
        log: Told of what people should know.

    Raises:
        StoreInUseError: Another process owns it.
        StoreUnreadableError: The file cannot be opened.
    """
    clock, directory = SystemClock(), settings.data_directory
    book = ThresholdBook()
    finisher = make_finisher(book)
    with Store(
        store_file(directory),
        finisher,
        WindowShapes(time=settings["windows.time"], step=settings["windows.step"]),
        minimum_coverage=settings["store.minimum_coverage"],
        clock=clock,
        book=book,
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
            finisher=finisher,
            exporter=exporter,
            runner=JobRunner(declared_jobs(settings), context, log),
        )
