"""An inference node's agent: rings to batch logs, and batch logs to Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moescope.console.output import note
from moescope.console.places import log_root, ring_directory
from moescope.console.stopping import beside
from moescope.console.watch import Health, HealthStatus, serving
from moescope.console.watch.agent_figures import AgentFigures
from moescope.console.watch.periodic import periodically
from moescope.core.batchlog import WriterSettings
from moescope.core.clock import SystemClock
from moescope.core.errors import DependencyUnreachableError
from moescope.core.self_metrics import SelfMetrics
from moescope.producers.agent import Agent, AgentSettings
from moescope.producers.shipping import Shipper

if TYPE_CHECKING:
    import threading

    from moescope.core.clock import Clock
    from moescope.core.settings import Settings

HANGS_AFTER_SECONDS: Final = 60.0
FIGURES_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTotals:
    """What a run of the agent did.

    Attributes:
        logged_batches: Written to the batch logs, heartbeats among them.
        logged_rows: Tokens in them.
        lost_rows: Tokens that the ring lost before they were read.
        shipped_batches: Acknowledged by a broker, from this run or from earlier ones.
        shipped_bytes: Bytes of those.
        undeliverable_batches: Over the broker's limit, kept beside the batch logs.
        skipped_batches: Removed by the byte cap before they could be shipped.
        delivery_failures: Attempts that failed and were made again.
        waiting_batches: Left in the batch logs for the next start.
        trouble: Why they wait, or why no broker was found though nothing waits; empty: all is well.
    """

    logged_batches: int
    logged_rows: int
    lost_rows: int
    shipped_batches: int
    shipped_bytes: int
    undeliverable_batches: int
    skipped_batches: int
    delivery_failures: int
    waiting_batches: int
    trouble: str


class NotShippedError(DependencyUnreachableError):
    """Everything was to be shipped, and no broker took it."""


def run_agent(settings: Settings, stop: threading.Event, *, until_idle: bool) -> AgentTotals:
    """Ship what recorders write, until told to stop; then what is left, for a while.

    Args:
        settings: Name the data directory and the brokers.
        stop: Ends it when it is set.
        until_idle: End when everything that was recorded before the call is shipped, or when
            nothing could be for `kafka.delivery_timeout`.

    Returns:
        What it did; batches that wait are no error here.

    Raises:
        SettingsError: No brokers are configured.
        AgentLockedError: Another agent serves the ring folder.
        MoescopeError: What the agent or the shipper cannot go on after.
    """
    directory, metrics = settings.data_directory, SelfMetrics()
    root = log_root(directory)
    agent_settings = AgentSettings(log=WriterSettings(byte_cap=settings["log.byte_cap"]))
    with (
        Shipper(settings, root, metrics) as shipper,
        Agent(
            ring_directory(directory),
            root,
            settings=agent_settings,
            before_drop=shipper.save_cursor,
        ) as agent,
        serving(settings, metrics, "agent", status=_Standing(agent, shipper, SystemClock()).health),
        periodically(AgentFigures(agent, metrics).take, seconds=FIGURES_SECONDS),
    ):
        note(f"data directory {directory}; stop with Ctrl-C")
        if until_idle:
            agent.drain()
            waiting = shipper.drain(stop, patience=settings["kafka.delivery_timeout"])
        else:
            with beside(agent.run, stop, "moescope-agent"):
                shipper.run(stop)
            longest = settings["kafka.delivery_timeout"]
            note(
                f"shipping what is left, for at most {longest:g} s; a second signal ends that at "
                "once, and the rest waits for the next start"
            )
            waiting = shipper.drain(seconds=longest)
        return _totals(agent, shipper, waiting)


def check_shipped(totals: AgentTotals) -> None:
    """Whether a run that was to ship everything has done so.

    Raises:
        NotShippedError: It has not, or no broker was found.
    """
    if totals.trouble:
        number = totals.waiting_batches
        raise NotShippedError(
            f"{number:,} batch{'es' * (number != 1)} could not be shipped."
            if number
            else "No broker took us; no batch waits for one.",
            why=totals.trouble,
            next_step="Give the same command again when that is mended: it goes on from there.",
        )


class _Standing:
    """How the agent of this process is."""

    def __init__(self, agent: Agent, shipper: Shipper, clock: Clock) -> None:
        self._agent = agent
        self._shipper = shipper
        self._clock = clock

    def health(self) -> Health:
        """What its health file says: no restart mends a broker that is away, or a full disk."""
        silent = self._clock.monotonic() - self._shipper.stepped_at
        totals = self._shipper.totals
        facts = {
            "shipped_batches": totals.shipped_batches,
            "undeliverable_batches": totals.undeliverable_batches,
        }
        if silent > HANGS_AFTER_SECONDS:
            return Health(HealthStatus.FAILING, f"shipping hangs for {silent:.0f} s", facts)
        troubles = [each for each in (self._agent.trouble, self._shipper.trouble) if each]
        if troubles:
            why = " ".join(f"{each.what} {each.why}".strip() for each in troubles)
            return Health(HealthStatus.WAITING, why, facts)
        return Health(facts=facts)


def _totals(agent: Agent, shipper: Shipper, waiting: int) -> AgentTotals:
    logged, shipped = agent.counters().shipped, shipper.totals
    return AgentTotals(
        logged_batches=logged.batches,
        logged_rows=logged.rows,
        lost_rows=logged.lost_rows,
        shipped_batches=shipped.shipped_batches,
        shipped_bytes=shipped.shipped_bytes,
        undeliverable_batches=shipped.undeliverable_batches,
        skipped_batches=shipped.skipped_batches,
        delivery_failures=shipped.delivery_failures,
        waiting_batches=waiting,
        trouble=_trouble(shipper) if waiting or not shipper.is_connected else "",
    )


def _trouble(shipper: Shipper) -> str:
    error = shipper.trouble
    if error is None:
        return "No broker has acknowledged them."
    return " ".join(filter(None, (error.what, error.why, error.next_step)))
