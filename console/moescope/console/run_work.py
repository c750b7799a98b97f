"""Everything on one machine: the agent on a thread beside the embedded owner."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from moescope.console.output import note
from moescope.console.owner import Owner
from moescope.console.places import log_root, ring_directory
from moescope.console.progress import progress
from moescope.console.stopping import beside
from moescope.console.watch import Health, HealthStatus, serving
from moescope.console.watch.agent_figures import AgentFigures
from moescope.console.watch.periodic import periodically
from moescope.console.watch.store_figures import StoreFigures
from moescope.core.batchlog import WriterSettings
from moescope.core.self_metrics import SelfMetrics
from moescope.producers.agent import Agent, AgentSettings

if TYPE_CHECKING:
    from moescope.core.settings import Settings
    from moescope.processors.pipeline import PipelineTotals

LAST_SECONDS = 5.0


def run_all(settings: Settings, stop: threading.Event, *, until_idle: bool) -> PipelineTotals:
    """Ship what recorders wrote, process, store and export, until told to stop.

    Args:
        settings: Name the data directory and everything else.
        stop: Ends it when it is set.
        until_idle: End when everything that was recorded before the call is processed.

    Raises:
        StoreInUseError: Another process owns the store.
        AgentLockedError: Another agent serves the ring folder.
        MoescopeError: What the agent, the pipeline, the store or the export raised.
    """

    def tell(totals: PipelineTotals) -> None:
        """Records come without rows, too: an engine without work says each second that it lives."""
        shipped = agent.counters().shipped
        done = shipped.rows + shipped.unseen_rows + totals.token_windows + totals.dead_letters
        report(done, f"{totals.records:,} records, {totals.token_windows:,} token windows")

    directory = settings.data_directory
    agent_settings = AgentSettings(log=WriterSettings(byte_cap=settings["log.byte_cap"]))
    metrics, standing = SelfMetrics(), _Standing()
    with (
        progress("processing", may_idle=True) as report,
        serving(settings, metrics, "store", status=standing.health),
        Owner(settings, on_commit=tell, metrics=metrics) as owner,
        Agent(ring_directory(directory), log_root(directory), settings=agent_settings) as agent,
        periodically(StoreFigures(owner.parts.store, directory, metrics, owner.parts.clock).take),
        periodically(AgentFigures(agent, metrics).take),
    ):
        standing.totals = owner.pipeline.totals
        note(f"data directory {directory}; stop with Ctrl-C")
        if until_idle:
            agent.drain()
            return owner.run(until_idle=True, stop=stop)
        with beside(agent.run, stop, "moescope-agent"):
            owner.run(stop=stop)
        return _read_the_rest(owner)


class _Standing:
    """How the owner of this process is, as far as it has got."""

    def __init__(self) -> None:
        self.totals: PipelineTotals | None = None

    def health(self) -> Health:
        """What its health file says; a failure ends the process, and so needs no status."""
        totals = self.totals
        if totals is None:
            return Health(HealthStatus.STARTING, "the store is being opened")
        return Health(facts={"records": totals.records, "commits": totals.commits})


def _read_the_rest(owner: Owner) -> PipelineTotals:
    """Process what the agent shipped last; a backlog is left to the next start."""
    stop = threading.Event()
    timer = threading.Timer(LAST_SECONDS, stop.set)
    timer.start()
    try:
        return owner.run(until_idle=True, stop=stop)
    finally:
        timer.cancel()
