"""A lane as a partition holds it, fed with batches or records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.emission import LaneKey
from moescope.core.wire import decode_batch
from moescope.processors import lane as lane_module
from moescope.processors.config import WindowConfig
from moescope.processors.lane import Lane
from moescope.processors.lane_output import LaneOutput
from moescope.processors.pane_profiles import PaneProfiles
from moescope.processors.passes import OpenPasses
from moescope.processors.request_slots import RequestSlots
from moescope.processors.row_sampling import RowSampling

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from benchmarks.stages import StageClock
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


def watch_lane(clock: StageClock, prefix: str = "") -> None:
    """Time what a lane does with a batch."""
    for stage, owner, name in (
        ("roll-up in Python", Lane, "roll_up"),
        ("find the requests' slots", RequestSlots, "claim"),
        ("forget ended requests", Lane, "_release"),
        ("identical rows", lane_module, "mark_identical"),
        ("plan", lane_module, "plan"),
        ("count", lane_module, "count_rows"),
        ("apply", lane_module, "apply_ops"),
        ("take closed windows", LaneOutput, "add_closed"),
        ("task pieces", LaneOutput, "add_pieces"),
        ("add cells to panes", LaneOutput, "add_cells"),
        ("passes", OpenPasses, "add"),
        ("add passes to panes", LaneOutput, "add_passes"),
        ("positions, lags, similarity", PaneProfiles, "add"),
        ("close by watermark", Lane, "advance"),
    ):
        clock.watch(prefix + stage, owner, name)


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
