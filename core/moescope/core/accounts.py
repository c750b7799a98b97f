"""What became of records, nodes and partitions: the accounts that go with each emission."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAccount:
    """Ingest accounting of one record (table `batches`)."""

    partition: str
    offset: int
    append_time_us: int
    node: str
    incarnation: int
    sequence: int
    model: str
    revision: str
    record_bytes: int
    rows: int
    accepted_rows: int
    context_rows: int
    padding_rows: int
    recomputed_rows: int
    stale_rows: int
    late_rows: int
    uncounted_phase_rows: int
    suspicious_pairs: int
    lost_rows: int
    rejected_rows: int
    verdict: str
    reasons: tuple[str, ...] = ()
    unseen_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that could not be used, kept whole."""

    partition: str
    offset: int
    append_time_us: int
    reason: str
    detail: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A producer as the partition sees it (table `producers`)."""

    partition: str
    node: str
    incarnation: int
    last_sequence: int
    watermark_us: int
    state: str
    lost_rows: int
    gaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """Offsets of one partition, committed together with the output.

    Attributes:
        emitted_to: Offset of the first record whose output is *not* in this or an earlier
            commit.
        replay_from: Where a restarted processor has to start reading to rebuild its memory.
        state: Opaque; small partition state as of `emitted_to` (deduplication, node watermarks,
            row budget, trailing references, windows that closed early and must not reopen).
        watermark_us: The partition's watermark after `emitted_to`.
        step_low: Lowest step that an active training node still works on; `END_OF_TIME` when
            none trains.
        sealed: The partition was read to the end of a sealed log.
        set_aside_us: Watermarks of its nodes that are set aside because they are behind, in
            ascending order: who is missing from the windows that close meanwhile.
        log_id: What tells the log from another of the same name that was made later; empty where
            logs have no such thing, or nobody told.
    """

    partition: str
    domain: str
    emitted_to: int
    replay_from: int
    state: bytes
    watermark_us: int
    step_low: int
    sealed: bool
    set_aside_us: tuple[int, ...] = ()
    log_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCount:
    """How many records of a partition could not be used for one reason, exactly.

    Attributes:
        records: All of them. kept: Those that are kept whole, as dead letters.
        record_bytes: Bytes of all.
    """

    partition: str
    reason: str
    records: int
    kept: int
    record_bytes: int
