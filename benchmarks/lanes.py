"""A lane as a partition holds it, fed with batches or records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.emission import LaneKey
from moescope.core.wire import decode_batch
from moescope.processors.config import WindowConfig
from moescope.processors.lane import Lane
from moescope.processors.row_sampling import RowSampling

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from benchmarks.streams import Stream
    from moescope.core.batch import RoutingBatch

TOKEN_AND_TIME = WindowConfig(
    token=((128, 128),), task=False, step=(), node_scope=False, scene_scope=False
)
"""Token windows of 128 and the declared time windows, over all traffic."""

DRAIN_EVERY = 16
"""Batches between two commits of the benchmark."""


def new_lane(stream: Stream, config: WindowConfig = TOKEN_AND_TIME) -> Lane:
    """The lane of a stream."""
    key = LaneKey(
        domain="live",
        model="bench-moe",
        revision="r1",
        origin="model",
        fidelity="full",
        sampling_ratio=1.0,
        experts=stream.experts,
        top_k=stream.top_k,
        layers=tuple(range(stream.layers)),
    )
    return Lane(key, stream.node, config, RowSampling(config.row_budget))


def roll_up(lane: Lane, batches: Iterable[RoutingBatch]) -> int:
    """Roll batches up as a partition does, and hand the output out; returns closed windows."""
    closed = 0
    for number, batch in enumerate(batches, 1):
        lane.roll_up(batch, batch.header.sequence, live=True)
        lane.advance(batch.header.watermark_us, live=True)
        if number % DRAIN_EVERY == 0:
            closed += _drain(lane)
    return closed + _drain(lane)


def roll_up_records(lane: Lane, records: Iterable[bytes]) -> int:
    """The same from encoded batches."""
    return roll_up(lane, map(decode_batch, records))


def _drain(lane: Lane) -> int:
    groups, _, _ = lane.output.drain()
    return sum(len(group) for group in groups)


def counts_by_time(lane: Lane, batches: list[RoutingBatch]) -> NDArray[np.int64]:
    """Counts [L, E] over all time panes of batches: to check that nothing is lost."""
    for batch in batches:
        lane.roll_up(batch, batch.header.sequence, live=True)
    _, deltas, _ = lane.output.drain()
    counts = np.zeros((len(lane.key.layers), lane.key.experts), np.int64)
    for delta in deltas:
        counts += delta.counts
    return counts


def plain_counts(stream: Stream, batches: int) -> NDArray[np.int64]:
    """The same straight from the ids."""
    counts = np.zeros((stream.layers, stream.experts), np.int64)
    for index in range(batches):
        ids = stream.ids[index % len(stream.ids)][stream.counted]
        for layer in range(stream.layers):
            counts[layer] += np.bincount(ids[:, layer].reshape(-1), minlength=stream.experts)
    return counts
