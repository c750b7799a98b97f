"""What a pipeline says of itself, commit by commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.core.emission import LIVE_DOMAIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moescope.core.emission import Emission
    from moescope.core.self_metrics import SelfMetrics

BATCH_LOGS = "batch logs"
"""Every import makes batch logs of its own: as label values they would never end."""


class PipelineMetrics:
    """Reports into the metrics of a process.

    Args:
        metrics: Of the process.
        reads_topic: Whether partitions are those of a topic, and told one by one; the partitions
            of batch logs are told as one, `batch logs`, whose event time is that of live traffic.
    """

    def __init__(self, metrics: SelfMetrics, *, reads_topic: bool) -> None:
        self._metrics = metrics
        self._reads_topic = reads_topic

    def _label(self, partition: str) -> str:
        return partition if self._reads_topic else BATCH_LOGS

    def note_read(self, read: Mapping[str, tuple[int, int]]) -> None:
        """Records and bytes processed since the last call, by partition."""
        for partition, (records, record_bytes) in read.items():
            if records:
                label = self._label(partition)
                self._metrics.add("moescope_processor_records_total", records, partition=label)
                self._metrics.add(
                    "moescope_processor_record_bytes_total", record_bytes, partition=label
                )

    def note_commit(self, emission: Emission, now_us: int) -> None:
        """An emission was committed."""
        metrics = self._metrics
        metrics.add("moescope_processor_commits_total")
        metrics.set("moescope_processor_last_commit_timestamp_seconds", now_us / 1e6)
        metrics.add(
            "moescope_processor_token_windows_total",
            sum(len(finished.group) for finished in emission.windows),
        )
        for count in emission.dead_letter_counts:
            metrics.add("moescope_processor_dead_letters_total", count.records, reason=count.reason)
            if count.reason == "log_gap":
                metrics.add(
                    "moescope_processor_gap_records_total",
                    count.records,
                    partition=self._label(count.partition),
                )
        for progress in emission.progress:
            is_told = self._reads_topic or progress.domain == LIVE_DOMAIN
            if is_told and progress.watermark_us not in {NO_TIME, END_OF_TIME}:
                metrics.set(
                    "moescope_processor_watermark_timestamp_seconds",
                    progress.watermark_us / 1e6,
                    partition=self._label(progress.partition),
                )

    def note_refusal(self) -> None:
        """A commit was refused."""
        self._metrics.add("moescope_processor_refused_commits_total")
