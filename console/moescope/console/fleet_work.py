"""What the owner of a fleet's store does with Kafka, on threads beside everything else."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from moescope.console.hand_over_work import HandOver
from moescope.console.kafka.letter_publisher import (
    DeadLetterTopic,
    publishes_dead_letters,
    publishing_dead_letters,
)
from moescope.console.kafka.partition_check import tell_partitions
from moescope.console.output import note
from moescope.console.stopping import beside
from moescope.core.emission import LIVE_DOMAIN
from moescope.processors.config import WindowConfig
from moescope.processors.letter_notes import LetterNotes
from moescope.processors.pipeline import Pipeline
from moescope.processors.pipeline_metrics import PipelineMetrics
from moescope.processors.sources.kafka import KafkaSource
from moescope.storage.control_topic import ControlPublisher
from moescope.storage.deltas import DeltasReader
from moescope.storage.stragglers import PatientStore

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Iterator

    from moescope.console.opened_store import OpenedStore
    from moescope.core.self_metrics import SelfMetrics
    from moescope.processors.sources.protocol import Poll, Source


class _Troubled(Protocol):
    """Whatever waits for Kafka."""

    @property
    def trouble(self) -> str:
        """Why it waits; empty: it does not."""
        ...


class FleetWork:
    """Reads live traffic into the store, and tells processors which thresholds are in force.

    Args:
        parts: The open store.
        metrics: Of this process.
        resets_processors: Let processors go on from what is stored before anything is read.
    """

    def __init__(
        self, parts: OpenedStore, metrics: SelfMetrics, *, resets_processors: bool = False
    ) -> None:
        self._parts = parts
        self._metrics = metrics
        self._resets_processors = resets_processors
        self._reading: _Troubled | None = None

    @property
    def trouble(self) -> str:
        """Why no live traffic comes at present; empty: nothing is wrong."""
        return "" if self._reading is None else self._reading.trouble

    @contextmanager
    def running(self, stop: threading.Event) -> Iterator[None]:
        """Work while the block runs.

        Raises:
            MoescopeError: What reading raised.
        """
        with (
            beside(self._publisher().run, stop, "moescope-control"),
            beside(self._read, stop, "moescope-kafka"),
            beside(self._tell_partitions, stop, "moescope-partitions"),
            publishing_dead_letters(self._parts.store, self._parts.settings, note),
        ):
            yield

    def drain(self, stop: threading.Event) -> None:
        """Publish what is in force, read everything that is in the topic, publish dead letters.

        Raises:
            MoescopeError: No broker answers, or what reading raised.
        """
        self._publisher().publish()
        self._read(stop, until_idle=True)
        self._tell_partitions(stop)
        if publishes_dead_letters(self._parts.settings):
            DeadLetterTopic(self._parts.store, self._parts.settings, note).publish()

    def _tell_partitions(self, stop: threading.Event) -> None:
        tell_partitions(self._parts.settings, note, stop)

    def _publisher(self) -> ControlPublisher:
        parts = self._parts
        return ControlPublisher(
            parts.settings,
            parts.store,
            parts.book,
            metrics=self._metrics,
            clock=parts.clock,
            log=note,
        )

    def _read(self, stop: threading.Event, *, until_idle: bool = False) -> None:
        parts, settings = self._parts, self._parts.settings
        if settings["store.source"] == "deltas":
            self._reading = over = HandOver(parts, note, is_ordered=self._resets_processors)
            over.perform(stop, is_patient=not until_idle)
            self._reading = reader = DeltasReader(
                settings,
                parts.store,
                self._metrics,
                parts.clock,
                note,
                waits_for_stragglers=not until_idle,
            )
            reader.run(stop, until_idle=until_idle)
            return
        with KafkaSource(
            settings, self._metrics, parts.clock, log=note, patient=not until_idle
        ) as source:
            self._reading = source
            Pipeline(
                source,
                parts.store if until_idle else PatientStore(parts.store, parts.clock),
                parts.finisher,
                WindowConfig.from_settings(settings),
                commit_interval=settings["processor.commit_interval"],
                commit_records=settings["processor.commit_records"],
                metrics=PipelineMetrics(self._metrics, reads_topic=True),
                letter_notes=LetterNotes(note, parts.clock),
            ).run(stop=stop, until_idle=until_idle)


class WithoutLive:
    """A source without the partitions of live traffic, which come another way.

    Args:
        source: All partitions.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def partitions(self) -> dict[str, str]:
        """Name → watermark domain of the others."""
        found = self._source.partitions()
        return {name: domain for name, domain in found.items() if domain != LIVE_DOMAIN}

    def log_id(self, partition: str, known: str) -> str:
        """Pass it on."""
        return self._source.log_id(partition, known)

    def poll(self, partition: str, offset: int, max_records: int, max_bytes: int) -> Poll:
        """Read from an offset on."""
        return self._source.poll(partition, offset, max_records, max_bytes)

    def committed(self, partition: str, replay_from: int) -> None:
        """Pass it on."""
        self._source.committed(partition, replay_from)

    def revoked(self) -> Collection[str]:
        """Pass it on."""
        return self._source.revoked()

    def claim(self) -> object:
        """Pass it on."""
        return self._source.claim()

    def unread(self, held: Collection[str]) -> frozenset[str]:
        """Pass it on."""
        return self._source.unread(held)

    def settled(self) -> bool:
        """Pass it on."""
        return self._source.settled()
