"""Batch logs to measure with: of made-up streams and of simulated fleets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.streams import SECOND_US
from moescope.core.batchlog import BatchLogReader, BatchLogWriter, WriterSettings, partition_names
from moescope.core.wire import encode_batch
from moescope.producers.simulator import scenario_named, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.streams import Stream


@dataclass(frozen=True)
class Log:
    """A sealed batch log and what is in it; `node_seconds` is event time, added over nodes."""

    root: Path
    records: int
    assignments: int
    tokens: int
    wire_bytes: int
    node_seconds: float


def write_stream(root: Path, stream: Stream, batches: int) -> Log:
    """Write a stream to one partition."""
    size = 0
    writer = BatchLogWriter(root, stream.node, settings=WriterSettings(durability="none"))
    for index in range(batches):
        batch = stream.batch(index)
        payload = encode_batch(batch)
        size += len(payload)
        writer.append(payload, append_time_us=batch.header.encoded_at_us)
    writer.seal()
    writer.close()
    return Log(
        root,
        records=batches,
        assignments=batches * stream.assignments,
        tokens=batches * stream.rows,
        wire_bytes=size,
        node_seconds=batches * stream.batch_us / SECOND_US,
    )


def write_simulation(root: Path, scenario: str, *, seconds: int, nodes: int) -> Log:
    """Simulate a fleet."""
    totals = simulate(scenario_named(scenario), root, seed=7, duration_s=seconds, nodes=nodes)
    return Log(
        root,
        records=totals.batches,
        assignments=totals.assignments,
        tokens=totals.tokens,
        wire_bytes=totals.wire_bytes,
        node_seconds=seconds * nodes,
    )


def left_open(log: Log, root: Path) -> Log:
    """The same records in live partitions that are not sealed, as an agent has them."""
    for name in partition_names(log.root):
        with (
            BatchLogReader(log.root, name) as reader,
            BatchLogWriter(root, name, settings=WriterSettings(durability="none")) as writer,
        ):
            offset = reader.first_offset()
            while (result := reader.read(offset)).records:
                for record in result.records:
                    writer.append(record.payload, append_time_us=record.append_time_us)
                offset = result.next_offset
    return replace(log, root=root)


def payloads(root: Path) -> Iterator[bytes]:
    """Every record of a log."""
    for name in partition_names(root):
        with BatchLogReader(root, name) as reader:
            offset = reader.first_offset()
            while (result := reader.read(offset)).records:
                for record in result.records:
                    yield bytes(record.payload)
                offset = result.next_offset
