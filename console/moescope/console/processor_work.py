"""One processor of a fleet: from the routing topic to the deltas topic, and nothing on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.console.compiling import compile_first
from moescope.console.fleet_shape import need_processors
from moescope.console.output import note
from moescope.console.watch import Health, HealthStatus, serving
from moescope.core.clock import SystemClock
from moescope.core.kafka.broker_watch import BrokerWatch
from moescope.core.self_metrics import SelfMetrics
from moescope.core.thresholds import ThresholdBook
from moescope.processors.config import WindowConfig
from moescope.processors.control import ControlFollower
from moescope.processors.finish import WindowFinisher
from moescope.processors.group.joining import joined_group
from moescope.processors.pipeline import PipelineTotals

if TYPE_CHECKING:
    import threading

    from moescope.core.settings import Settings


def run_processor(
    settings: Settings, stop: threading.Event, *, until_idle: bool = False
) -> PipelineTotals:
    """Take a share of the routing topic's partitions, and process them until told to stop.

    Args:
        settings: Name the brokers, the topics, the group and the windows.
        stop: Ends it when it is set: what was read is committed, and the group is left.
        until_idle: End when every partition that is ours is read to its present end; then a
            broker that does not answer is an error, not waited for.

    Raises:
        SettingsError: The store is said to read routing batches itself.
        BrokerUnreachableError: Nobody answers, and it is not waited for.
        BrokerRefusedError: Who we are is not accepted.
        DuplicateProcessorError: Another processor has our name.
        LogRewoundError: The topic is not the one that was processed.
        MoescopeError: What the pipeline raised.
    """
    need_processors(settings, "A processor")
    metrics, clock, book = SelfMetrics(), SystemClock(), ThresholdBook()
    watch = BrokerWatch(note)
    state = _State(metrics, watch)
    with serving(settings, metrics, "processor", status=state.health, clock=clock):
        compile_first(WindowConfig.from_settings(settings), state.prepares)
        state.is_prepared()
        with (
            ControlFollower(settings, book, note, patient=not until_idle) as control,
            joined_group(
                settings,
                WindowFinisher(book, minimum_coverage=settings["store.minimum_coverage"]),
                metrics=metrics,
                clock=clock,
                log=note,
                patient=not until_idle,
                watch=watch,
            ) as pipeline,
        ):
            note(f"processor of the group {settings['kafka.group']}; stop with Ctrl-C")
            state.control = control
            # A window that is judged before its lines are known would never be judged again.
            if control.wait_until_read(stop):
                state.is_working = True
                pipeline.run(until_idle=until_idle, stop=stop)
            return pipeline.totals


class _State:
    """What the processor says of itself."""

    def __init__(self, metrics: SelfMetrics, watch: BrokerWatch) -> None:
        self._metrics = metrics
        self._watch = watch
        self._prepares = ""
        self.control: ControlFollower | None = None
        self.is_working = False

    def prepares(self, what: str) -> None:
        """Something takes its time before work begins."""
        self._prepares = what
        note(what)

    def is_prepared(self) -> None:
        """That is over."""
        self._prepares = ""

    def health(self) -> Health:
        """Starting, waiting for thresholds and brokers, else well while thresholds are followed."""
        if self._prepares:
            return Health(HealthStatus.STARTING, self._prepares)
        control = self.control
        if control is None or not self.is_working:
            trouble = "" if control is None else control.trouble
            return Health(
                HealthStatus.WAITING, trouble or "The thresholds in force were not read yet."
            )
        failure = control.failure
        if failure is not None:
            return Health(HealthStatus.FAILING, f"Thresholds are followed no longer: {failure}")
        if self._watch.is_away:
            return Health(HealthStatus.WAITING, self._watch.trouble, self._facts())
        return Health(facts=self._facts())

    def _facts(self) -> dict[str, int]:
        """Partitions that are ours, records that wait in them, and commits so far."""
        lag = sum(
            value
            for metric, _, value in self._metrics.samples()
            if metric.name == "moescope_processor_lag_records"
        )
        return {
            "partitions": int(self._metrics.value("moescope_processor_assigned_partitions")),
            "lag_records": int(lag),
            "commits": int(self._metrics.value("moescope_processor_commits_total")),
        }


__all__ = ["PipelineTotals", "run_processor"]
