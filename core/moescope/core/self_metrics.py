"""What moescope says of itself: metric names as an interface, and the values of one process.

Names are `moescope_<component>_<noun>_<unit>`; labels have few values. Rendering for Prometheus
is the console's: an engine's process imports nothing for it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from moescope.core.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator


class MetricKind(StrEnum):
    """What may happen to a value."""

    COUNTER = "counter"
    """Only grows while the process lives; the name ends with `_total`."""
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class SelfMetric:
    """One metric of moescope's own; `component` is `agent`, `processor` or `store`."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def component(self) -> str:
        """Who reports it."""
        return self.name.split("_")[1]


def _counter(name: str, text: str, *labels: str) -> SelfMetric:
    return SelfMetric(f"moescope_{name}_total", MetricKind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> SelfMetric:
    return SelfMetric(f"moescope_{name}", MetricKind.GAUGE, text, labels)


SELF_METRICS: tuple[SelfMetric, ...] = (
    _counter("agent_shipped_batches", "Batches that a broker acknowledged.", "node"),
    _counter("agent_shipped_bytes", "Bytes of those batches.", "node"),
    _counter("agent_dropped_batches", "Batches that the byte cap removed unshipped.", "node"),
    _counter("agent_dropped_rows", "Rows that the ring lost, or that made no valid batch."),
    _counter("agent_undeliverable_batches", "Batches over the broker's limit, set aside.", "node"),
    _counter("agent_delivery_failures", "Deliveries that failed and are tried again.", "reason"),
    _counter("agent_client_rebuilds", "Kafka clients that were given up and made again."),
    _gauge("agent_backlog_batches", "Batches in the batch log that wait to be shipped.", "node"),
    _gauge("agent_log_bytes", "Bytes of the node's batch log.", "node"),
    _gauge("agent_free_bytes", "Room on the disk of the data directory."),
    _gauge("agent_in_flight_bytes", "Bytes sent and not acknowledged."),
    _gauge("agent_last_acknowledged_timestamp_seconds", "When a batch was last acknowledged."),
    _counter("processor_records", "Records processed.", "partition"),
    _counter("processor_record_bytes", "Bytes of those records.", "partition"),
    _counter("processor_token_windows", "Token windows closed."),
    _counter("processor_dead_letters", "Records that could not be used.", "reason"),
    _counter("processor_gap_records", "Records gone before they were read.", "partition"),
    _counter("processor_commits", "Transactions committed."),
    _counter("processor_refused_commits", "Transactions refused; their input is read again."),
    _counter("processor_rebalances", "Times that partitions were given or taken."),
    _gauge("processor_assigned_partitions", "Partitions that this processor reads."),
    _gauge("processor_lag_records", "Records of the partition not processed yet.", "partition"),
    _gauge("processor_watermark_timestamp_seconds", "Event time reached.", "partition"),
    _gauge("processor_buffered_bytes", "Bytes read ahead."),
    _gauge("processor_catching_up", "1 while a backlog is read."),
    _gauge("processor_last_commit_timestamp_seconds", "When a transaction last committed."),
    _counter("store_commits", "Transactions of the store."),
    _counter("store_commit_seconds", "Time spent in them."),
    _counter("store_emissions", "Emissions of processors applied."),
    _counter("store_refused_emissions", "Emissions that repeat what is stored, left out."),
    _counter("store_gap_emissions", "Places in the deltas topic gone before they were read."),
    _gauge("store_lag_records", "Records of the deltas topic not applied yet."),
    _gauge("store_next_offset", "First record whose output is not stored yet.", "partition"),
    _gauge("store_watermark_timestamp_seconds", "Event time up to which windows closed.", "domain"),
    _gauge("store_last_commit_timestamp_seconds", "When the store last committed."),
    _gauge("store_dead_letters", "Records that could not be used, as counted there.", "reason"),
    _gauge("store_control_waiting_seconds", "How long new thresholds wait to be published."),
    _gauge("store_unserved_partitions", "Partitions whose records wait and nobody processes."),
    _gauge("store_catching_up", "1 while a backlog is read: what fires is history."),
    _gauge("store_file_bytes", "Size of the store file and its log of changes."),
    _gauge("store_free_bytes", "Room on the disk of the data directory."),
    _gauge("store_open_alerts", "Alerts that are not resolved.", "state"),
    _gauge("store_waiting_notifications", "Notifications that nobody has received yet."),
    _gauge("store_oldest_waiting_notification_seconds", "How long the oldest of them waits."),
    _gauge("store_job_failing", "1 where the last run of the job failed.", "name"),
    _gauge("store_fencing_token", "Rises with each new owner."),
    _gauge("store_standby", "1 while this process waits to become the owner."),
)

SELF_METRIC_BY_NAME = {metric.name: metric for metric in SELF_METRICS}


class SelfMetrics:
    """The values of one process; may be used from any thread.

    A label value that is not known in advance (a node, a partition) is bounded by what one
    process serves.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}

    def add(self, name: str, /, amount: float = 1.0, **labels: str) -> None:
        """Raise a counter.

        Raises:
            InternalError: It is not declared like that, or the amount is negative.
        """
        key = _key(name, MetricKind.COUNTER, labels)
        if amount < 0:
            raise InternalError(f"{name} only grows, not by {amount}.")
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + amount

    def set(self, name: str, /, value: float, **labels: str) -> None:
        """Set a gauge.

        Raises:
            InternalError: It is not declared like that.
        """
        key = _key(name, MetricKind.GAUGE, labels)
        with self._lock:
            self._values[key] = value

    def forget(self, name: str, /, **labels: str) -> None:
        """Take a gauge away whose subject is gone, such as a lost partition."""
        key = _key(name, MetricKind.GAUGE, labels)
        with self._lock:
            self._values.pop(key, None)

    def value(self, name: str, /, **labels: str) -> float:
        """One value; 0 where nothing was reported."""
        metric = SELF_METRIC_BY_NAME[name]
        with self._lock:
            return self._values.get((name, tuple(labels[each] for each in metric.labels)), 0.0)

    def samples(self) -> Iterator[tuple[SelfMetric, tuple[str, ...], float]]:
        """Metric, label values in the declared order, and value, of everything reported."""
        with self._lock:
            values = sorted(self._values.items())
        for (name, labels), value in values:
            yield SELF_METRIC_BY_NAME[name], labels, value


def _key(name: str, kind: MetricKind, labels: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    metric = SELF_METRIC_BY_NAME.get(name)
    if metric is None or metric.kind is not kind or set(labels) != set(metric.labels):
        raise InternalError(f"{name} is not a declared {kind} with the labels {sorted(labels)}.")
    return name, tuple(labels[each] for each in metric.labels)
