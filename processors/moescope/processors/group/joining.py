"""A processor in a group, put together from its parts."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from moescope.core.kafka.broker_watch import BrokerWatch
from moescope.processors.config import WindowConfig
from moescope.processors.group.commits import TransactionalStore
from moescope.processors.group.fences import Fences
from moescope.processors.group.source import GroupSource
from moescope.processors.group.states import StateReader
from moescope.processors.letter_notes import LetterNotes
from moescope.processors.pipeline import Pipeline
from moescope.processors.pipeline_metrics import PipelineMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moescope.core.clock import Clock
    from moescope.core.emission import Finisher
    from moescope.core.self_metrics import SelfMetrics
    from moescope.core.settings import Settings
    from moescope.processors.pipeline import PipelineTotals

REST_SECONDS = 0.5
"""Between two transactions, each of which is answered by several brokers."""


@contextmanager
def joined_group(
    settings: Settings,
    finisher: Finisher,
    *,
    metrics: SelfMetrics,
    clock: Clock,
    log: Callable[[str], None],
    patient: bool = True,
    config: WindowConfig | None = None,
    on_commit: Callable[[PipelineTotals], None] | None = None,
    watch: BrokerWatch | None = None,
) -> Iterator[Pipeline]:
    """A pipeline over the partitions that the group gives to this process.

    Args:
        settings: Name the brokers, the topics, the group and the instance.
        finisher: Computes metric values.
        metrics: Of the process.
        clock: For pauses and times of metrics only.
        log: Told what people should know.
        patient: Whether a broker that is not there yet is waited for.
        config: Declared windows; None: those of the settings.
        on_commit: Called after each commit.
        watch: Told when the broker goes and comes; None: one that tells the log alone.
    """
    watch = BrokerWatch(log) if watch is None else watch
    fences = Fences(settings["kafka.instance_id"], clock, log)
    with ExitStack() as closing:
        store = TransactionalStore(settings, watch, fences, log)
        closing.callback(store.close)
        states = StateReader(settings, clock)
        closing.callback(states.close)
        source = GroupSource(
            settings,
            store.settle,
            states,
            fences,
            metrics=metrics,
            clock=clock,
            watch=watch,
            log=log,
            patient=patient,
        )
        closing.callback(source.close)
        yield Pipeline(
            source,
            store,
            finisher,
            WindowConfig.from_settings(settings) if config is None else config,
            commit_interval=settings["processor.commit_interval"],
            commit_records=settings["processor.commit_records"],
            rest=REST_SECONDS,
            clock=clock,
            on_commit=on_commit,
            resuming=source,
            metrics=PipelineMetrics(metrics, reads_topic=True),
            letter_notes=LetterNotes(log, clock),
        )
