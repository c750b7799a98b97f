"""Token and time windows together, from decoded batches and from records."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from benchmarks.baselines import (
    ONE_THREAD,
    NumpyCounts,
    assignment_rows,
    duckdb_with_threads,
    polars_with_threads,
)
from benchmarks.figures import Baseline, Figure, Profile, Result
from benchmarks.harness import Scale, Side, main, rates
from benchmarks.lanes import counts_by_time, new_lane, plain_counts, roll_up, roll_up_records
from benchmarks.stages import StageClock
from benchmarks.streams import EXPERTS, LAYERS, TOP_K, WINDOW, Stream, dense_stream, sparse_stream
from moescope.core.wire import encode_batch
from moescope.processors.lane_output import LaneOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.core.batch import RoutingBatch

MORE_EXPERTS = 128

TEXT = f"""
What a processor does with a batch, by one thread: `Lane.roll_up` (plan, count, apply), closing by
watermark, and handing the output out every 16 batches; {LAYERS} layers, {TOP_K} of {EXPERTS}
experts, token windows of {WINDOW} and time windows of 1, 5 and 60 s. *128 per request*: 320 open
requests, 32 to a batch. *5 per request*: 9,600 open requests, 800 to a batch. Requests stand
anywhere in their windows when the run begins. Each batch repeats the last two rows of every
request as context (they are read, and not counted as work) and tells the first-ranked expert: the
overlap and the top-1 switches of every pair of neighbouring tokens are summed with the counts, and
so are sampled positions, the similarity of requests, and lags of 1 % of them. *With scores*: score
entropy and margin of every row, too. *{MORE_EXPERTS} experts*: {TOP_K} of more. *Records* are
encoded batches: checksum, decompression and validation come on top. *With pass ids*: the same
records with the forward pass of each row (a pass computes a position of every request of the
batch), and so the imbalance of each pass. The other baselines
count the ids of the same batches per (layer, run of {WINDOW} tokens, expert) alone: no positions,
no time windows, no closing.
"""


CONTEXT_ROWS = 2
"""As the agent repeats them."""


class _Feed:
    """Hands a lane the next batches of a stream, again and again."""

    def __init__(self, stream: Stream, batches: int) -> None:
        self.stream = stream
        self._per_run = batches
        self._next = 0
        self.batches: list[RoutingBatch] = []
        self.records: list[bytes] = []
        self.lane = new_lane(stream)

    @property
    def assignments(self) -> int:
        return self._per_run * self.stream.assignments

    def prepare(self) -> None:
        self.batches = [self.stream.batch(self._next + each) for each in range(self._per_run)]
        self._next += self._per_run

    def prepare_records(self) -> None:
        self.prepare()
        self.records = [encode_batch(batch) for batch in self.batches]

    def run(self) -> None:
        roll_up(self.lane, self.batches)

    def run_records(self) -> None:
        roll_up_records(self.lane, self.records)


def measure(scale: Scale) -> Result:
    """Measure the topic."""
    repetitions = scale.pick(9, 2)
    streams = (
        dense_stream(quick=scale.quick, context=CONTEXT_ROWS, ranked=True),
        sparse_stream(quick=scale.quick, context=CONTEXT_ROWS, ranked=True),
    )
    scored = replace(streams[0], scored=True)
    wide = replace(streams[0], experts=MORE_EXPERTS)
    in_passes = [replace(stream, passes=True) for stream in streams]
    for stream in (*streams, scored, wide, *in_passes):
        _check(stream)
    dense, sparse, dense_records, sparse_records = (
        _Feed(stream, scale.pick(48, 4)) for stream in (*streams, *streams)
    )
    dense_passes, sparse_passes = (_Feed(stream, scale.pick(48, 4)) for stream in in_passes)
    with_scores, more_experts = (_Feed(stream, scale.pick(48, 4)) for stream in (scored, wide))
    records = {
        "dense records": dense_records, "sparse records": sparse_records,
        "dense passes": dense_passes, "sparse passes": sparse_passes,
    }  # fmt: skip
    baselines = _baselines(dense_stream(quick=scale.quick))
    measured = rates(
        [
            Side("dense", dense.assignments, dense.run, dense.prepare),
            Side("sparse", sparse.assignments, sparse.run, sparse.prepare),
            Side("scores", with_scores.assignments, with_scores.run, with_scores.prepare),
            Side("experts", more_experts.assignments, more_experts.run, more_experts.prepare),
            *(
                Side(name, feed.assignments, feed.run_records, feed.prepare_records)
                for name, feed in records.items()
            ),
            *baselines,
        ],
        repetitions,
    )  # fmt: skip
    names = ("numpy", "polars", "DuckDB")
    from_ids = [
        Baseline(name=f"{name}, ids in memory, counts only, 1 thread", values=measured[name])
        for name in names
    ]
    from_bytes = [
        Baseline(name="numpy from zstd-compressed ids, counts only", values=measured["bytes"])
    ]
    unit = "M assignments/s, one core"
    return Result(
        topic="windows",
        title="Token and time windows together",
        text=TEXT,
        order=2,
        figures=[
            Figure(
                what="decoded batches, 128 per request", unit=unit, values=measured["dense"],
                target=900, baselines=from_ids,
            ),
            Figure(
                what="decoded batches, 5 per request", unit=unit, values=measured["sparse"],
                target=300, baselines=from_ids,
            ),
            Figure(
                what="decoded batches, 128 per request, with scores", unit=unit,
                values=measured["scores"],
            ),
            Figure(
                what=f"decoded batches, 128 per request, {MORE_EXPERTS} experts", unit=unit,
                values=measured["experts"],
            ),
            Figure(
                what="records, 128 per request", unit=unit, values=measured["dense records"],
                target=450, baselines=from_bytes,
            ),
            Figure(
                what="records, 5 per request", unit=unit, values=measured["sparse records"],
                baselines=from_bytes,
            ),
            *(
                Figure(
                    what=f"records with pass ids, {per_request} per request", unit=unit,
                    values=measured[f"{name} passes"],
                    baselines=[
                        Baseline(
                            name="the same without pass ids", values=measured[f"{name} records"]
                        )
                    ],
                )
                for name, per_request in (("dense", 128), ("sparse", 5))
            ),
        ],
        profiles=[
            _profile("records, 128 per request", dense_records),
            _profile("records, 5 per request", sparse_records),
            _profile("records with pass ids, 128 per request", dense_passes),
            _profile("records with pass ids, 5 per request", sparse_passes),
        ],
    )  # fmt: skip


def _check(stream: Stream) -> None:
    batches = [stream.batch(index) for index in range(3)]
    np.testing.assert_array_equal(
        counts_by_time(new_lane(stream), batches), plain_counts(stream, len(batches))
    )


def _baselines(stream: Stream) -> list[Side]:
    ids = stream.ids[0]
    counts = NumpyCounts(ids, stream.experts, WINDOW)
    faster: Callable[[], object] = counts.by_layer
    pl = polars_with_threads(ONE_THREAD)
    frame = assignment_rows(pl, ids, WINDOW)
    database = duckdb_with_threads(ONE_THREAD)
    database.register("frame", frame.to_arrow())
    database.execute('CREATE TABLE assignments AS SELECT layer, "window" AS w, expert FROM frame')
    packed = zstandard.ZstdCompressor(level=1).compress(ids.tobytes())

    def from_bytes() -> object:
        raw = zstandard.ZstdDecompressor().decompress(packed)
        unpacked = np.frombuffer(raw, np.uint8).reshape(ids.shape)
        return NumpyCounts(unpacked, stream.experts, WINDOW).by_layer()

    return [
        Side("numpy", ids.size, faster),
        Side("polars", ids.size, lambda: frame.group_by("layer", "window", "expert").len()),
        Side(
            "DuckDB", ids.size,
            lambda: database.execute(
                "SELECT layer, w, expert, count(*) FROM assignments GROUP BY ALL"
            ).fetchall(),
        ),
        Side("bytes", ids.size, from_bytes),
    ]  # fmt: skip


def _profile(title: str, feed: _Feed) -> Profile:
    from benchmarks import lanes  # noqa: PLC0415 (its `decode_batch` is replaced)

    feed.prepare_records()
    with StageClock() as clock:
        clock.watch("decode the record", lanes, "decode_batch")
        lanes.watch_lane(clock)
        clock.watch("hand out", LaneOutput, "drain")
        feed.run_records()
        stages = clock.stages()
    return Profile(
        title=f"Where the time goes: {title}",
        stages=stages,
        note=f"{feed.assignments / 1e6:.0f} M assignments. Timing the stages itself takes time.",
    )


if __name__ == "__main__":
    main("windows", measure)
