"""Partitions become label values only where their number is bounded."""

from __future__ import annotations

from moescope.core.accounts import DeadLetterCount, PartitionProgress
from moescope.core.emission import Emission
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.pipeline_metrics import PipelineMetrics


def labels_after(names: list[str], *, reads_topic: bool) -> set[str]:
    """Values of the label `partition` after some of each partition was read and committed."""
    metrics = SelfMetrics()
    told = PipelineMetrics(metrics, reads_topic=reads_topic)
    told.note_read(dict.fromkeys(names, (3, 90)))
    for name in names:
        progress = PartitionProgress(
            partition=name,
            domain="live",
            emitted_to=3,
            replay_from=0,
            state=b"",
            watermark_us=1_000_000,
            step_low=0,
            sealed=False,
        )
        gap = DeadLetterCount(partition=name, reason="log_gap", records=2, kept=1, record_bytes=0)
        told.note_commit(Emission(progress=(progress,), dead_letter_counts=(gap,)), 5_000_000)
    label = {"partition": names[0] if reads_topic else "batch logs"}
    share = 1 if reads_topic else len(names)
    assert metrics.value("moescope_processor_records_total", **label) == 3 * share
    assert metrics.value("moescope_processor_gap_records_total", **label) == 2 * share
    return {
        value
        for metric, values, _ in metrics.samples()
        for name, value in zip(metric.labels, values, strict=True)
        if name == "partition"
    }


def test_batch_logs_are_one_label_value_and_partitions_of_a_topic_one_each() -> None:
    """A hundred imports add no label values; three partitions are told apart."""
    imports = [f"import-{number}" for number in range(100)]
    assert labels_after(imports, reads_topic=False) == {"batch logs"}
    topic = ["moescope.routing-0", "moescope.routing-1", "moescope.routing-2"]
    assert labels_after(topic, reads_topic=True) == set(topic)
