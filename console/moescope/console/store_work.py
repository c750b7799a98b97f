"""`moescope run store`: the owner of a fleet's store, or a standby that waits to become it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from moescope.console.compiling import compile_first
from moescope.console.fleet_shape import need_processors
from moescope.console.output import note
from moescope.console.owner import COMMAND_SECONDS, Owner
from moescope.console.warming import warm_finisher
from moescope.console.watch import Health, HealthStatus, serving
from moescope.console.watch.periodic import periodically
from moescope.console.watch.store_figures import StoreFigures
from moescope.core.errors import InputError, SettingsError
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.config import WindowConfig
from moescope.storage.errors import StoreInUseError

if TYPE_CHECKING:
    import threading

    from moescope.core.settings import Settings

STANDBY_SECONDS: Final = 0.3
"""Between two looks of a standby at the store's lock."""
_STANDBY: Final = "moescope_store_standby"


def run_store(
    settings: Settings,
    stop: threading.Event,
    *,
    standby: bool = False,
    reset_processors: bool = False,
    until_idle: bool = False,
) -> SelfMetrics:
    """Own a fleet's store until told to stop.

    Args:
        settings: Name the data directory, the brokers and everything else.
        stop: Ends it when it is set.
        standby: Wait while another process owns the store, and take over when it ends.
        reset_processors: Before deltas are read, let processors go on from what is stored, as soon
            as none of them runs.
        until_idle: End when everything that was sent before the call is stored; then a broker
            that does not answer, or a processor that is in the way, is an error, not waited for.

    Returns:
        What this process says of itself.

    Raises:
        SettingsError: No brokers are named, or processors are to be reset where there are none.
        StoreInUseError: Another process owns the store, and this one is no standby.
        InputError: A standby is to reset processors.
        ProcessorsActiveError: Offsets of processors are to be set, one is running, and that is
            not waited for.
        MoescopeError: What reading, the store or the export raised.
    """
    if not settings["kafka.bootstrap_servers"]:
        raise SettingsError(
            "A fleet's store needs Kafka, and kafka.bootstrap_servers is empty.",
            next_step="Name the settings file that sets it with --config, or set "
            "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS=kafka:9092; without Kafka, `moescope run all` does "
            "everything on one machine.",
        )
    if reset_processors:
        need_processors(settings, "--reset-processors")
    if standby and reset_processors:
        raise InputError(
            "A standby cannot reset processors.",
            why="It would do so whenever it takes over.",
            next_step="Start the owner once with --reset-processors and without --standby.",
        )
    run = _Run(settings, stop)
    with serving(settings, run.metrics, "store", status=run.health):
        run.work(standby=standby, reset_processors=reset_processors, until_idle=until_idle)
    return run.metrics


class _Run:
    """One run, and how far it has got."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._owner: Owner | None = None
        self._health = Health(HealthStatus.STARTING, "the store is being opened")
        self.metrics = SelfMetrics()

    def health(self) -> Health:
        """What the health file says; a failure ends the process, and so needs no status."""
        if self._health.status is not HealthStatus.OK:
            return self._health
        if self._owner is not None and self._owner.trouble:
            return Health(HealthStatus.WAITING, self._owner.trouble, self._health.facts)
        commits = self.metrics.value("moescope_store_commits_total")
        return Health(facts={**self._health.facts, "commits": int(commits)})

    def work(self, *, standby: bool, reset_processors: bool, until_idle: bool) -> None:
        """Open the store, sooner or later, and own it."""
        directory = self._settings.data_directory
        compile_first(WindowConfig.from_settings(self._settings), self._prepares)
        with ExitStack() as closing:
            owner = self._opened(closing, standby=standby)
            if owner is None:
                return
            parts = owner.parts
            source = self._settings["store.source"]
            closing.enter_context(
                periodically(StoreFigures(parts.store, directory, self.metrics, parts.clock).take)
            )
            self._owner = owner
            self._health = Health(facts={"fencing_token": parts.store.fencing_token})
            note(
                f"owner {parts.store.fencing_token} of {directory}, reading {source}; stop with "
                "Ctrl-C"
            )
            owner.run(stop=self._stop, until_idle=until_idle, resets_processors=reset_processors)

    def _opened(self, closing: ExitStack, *, standby: bool) -> Owner | None:
        """The owner with its store open; None: told to stop while waiting for it."""
        self.metrics.set(_STANDBY, 0.0)
        if standby:
            # So that nothing is left to load once the lock is free.
            warm_finisher()
        while not self._stop.is_set():
            try:
                owner = closing.enter_context(
                    Owner(
                        self._settings,
                        metrics=self.metrics,
                        uses_kafka=True,
                        command_seconds=0.0 if standby else COMMAND_SECONDS,
                    )
                )
            except StoreInUseError as error:
                if not standby:
                    raise
                self._wait(error)
            else:
                self.metrics.set(_STANDBY, 0.0)
                return owner
        return None

    def _prepares(self, what: str) -> None:
        self._health = Health(HealthStatus.STARTING, what)
        note(what)

    def _wait(self, error: StoreInUseError) -> None:
        if self._health.status is not HealthStatus.WAITING:
            note(f"standby: {error.what} Taking over when it ends")
        self._health = Health(HealthStatus.WAITING, f"standby: {error.what}")
        self.metrics.set(_STANDBY, 1.0)
        self._stop.wait(STANDBY_SECONDS)
