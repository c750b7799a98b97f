"""Row streams of a small fleet on one partition, and how they are cut into records.

A stream is a list of items in the order of the partition: rows, heartbeats and garbage. Cutting
packs the same items, in the same order per node, into batches in different ways.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from hypothesis import strategies as st
from oracles.windows_plain import (
    CONTEXT,
    DECODE,
    DRAFT,
    EVAL,
    LAST_OF_REQUEST,
    LAST_OF_TASK,
    NO_TIME,
    PADDING,
    PREFILL,
    RECOMPUTED,
    SECOND,
    TRAIN,
    WARMUP,
    Lane,
    Record,
    Row,
)

from moescope.core.batch import BatchHeader, Quantised, Requests, Routes, RoutingBatch, Tokens
from moescope.core.batchlog import BatchLogWriter
from moescope.core.clock import ManualClock
from moescope.core.vocabulary import RankOrder
from moescope.core.wire import encode_batch
from moescope.processors.sources.protocol import SourceRecord

if TYPE_CHECKING:
    from pathlib import Path

START_US = 1_700_000_000 * SECOND


class Item(NamedTuple):
    """One thing that a node logs: a row, a heartbeat (no row) or garbage."""

    node: str
    lane: Lane
    time: int
    row: Row | None = None
    garbage: bool = False


@dataclass(frozen=True)
class Plan:
    """What a stream is like.

    Attributes:
        heartbeat_s: A node that is silent for longer says that it lives; 0: never.
        long_gaps: Whether silences of 31 s and more occur.
        odd_rows: Whether padding, recomputed, stale, suspicious and draft rows occur.
        training: Whether the last node trains.
        timed: Whether rows have event times.
        lag_s: How much later than the others' items the last node's arrive.
        site: Prefix of the nodes' names, which makes requests of several partitions distinct.
        ranked: Whether rank order is known.
        score_bits: Bits of entropy and margin codes; 0: there are none.
    """

    seed: int
    nodes: int = 1
    experts: int = 8
    top_k: int = 2
    layers: int = 2
    passes: int = 40
    heartbeat_s: float = 6.0
    long_gaps: bool = True
    odd_rows: bool = True
    training: bool = False
    timed: bool = True
    lag_s: float = 0.0
    site: str = ""
    ranked: bool = False
    score_bits: int = 0


@st.composite
def plans(draw: st.DrawFn, *, timed: bool | None = None, lagging: bool = False) -> Plan:
    """Small streams of every kind."""
    nodes = draw(st.integers(1, 3))
    experts = draw(st.sampled_from([4, 5, 8, 16, 70]))
    with_times = draw(st.sampled_from([True, True, True, False])) if timed is None else timed
    return Plan(
        seed=draw(st.integers(0, 2**32)),
        nodes=nodes,
        experts=experts,
        top_k=draw(st.integers(1, 3)),
        layers=draw(st.integers(1, 3)),
        passes=draw(st.integers(1, 60)),
        heartbeat_s=draw(st.sampled_from([0.0, 6.0])) if nodes == 1 else 6.0,
        long_gaps=draw(st.booleans()),
        odd_rows=draw(st.booleans()),
        training=draw(st.booleans()),
        timed=with_times,
        lag_s=draw(st.sampled_from([0.0, 12.0, 45.0])) if lagging else 0.0,
        ranked=draw(st.booleans()),
        score_bits=draw(st.sampled_from([0, 4, 8, 16])),
    )


@dataclass
class _Request:
    name: str
    task: str
    scene: str
    starts: tuple[int, ...]
    cached: int
    prompt: int
    end: int
    position: int
    last: Row | None = None
    last_of_task: bool = False


class _Node:
    """One node's requests over time."""

    def __init__(self, plan: Plan, index: int, rng: Random) -> None:
        self.plan, self.rng = plan, rng
        self.name = f"{plan.site}node-{index}"
        revision = "r1" if index < 2 or rng.random() < 0.5 else "r2"
        self.lane = Lane("moe", revision, plan.experts, plan.top_k, plan.layers)
        self.training = plan.training and index == plan.nodes - 1
        self.passes = 0
        self.step = 0
        self.running: list[_Request] = []
        self.popularity = [
            [rng.random() ** 2 + 0.05 for _ in range(plan.experts)] for _ in range(plan.layers)
        ]

    def start(self, number: int) -> None:
        rng = self.rng
        prompt = rng.choice([0, 1, 3, 8, 11, 17])
        cached = rng.choice([0, 0, 0, min(4, prompt), prompt])
        phase_start = rng.choice([prompt, prompt, prompt, prompt, -1])
        starts = [-1] * 6
        starts[PREFILL] = rng.choice([0, 0, -1])
        starts[DECODE] = phase_start
        if self.training:
            prompt = 0
        self.running.append(
            _Request(
                name=f"{self.name}/request-{number}",
                task=f"task-{rng.randrange(4)}",
                scene=rng.choice(["chat", "code", ""]),
                starts=tuple(starts),
                cached=cached,
                prompt=prompt,
                end=prompt + rng.randrange(1, 30),
                position=rng.choice([cached, cached, 0]),
                last_of_task=rng.random() < 0.3,
            )
        )

    def ids(self) -> tuple[tuple[int, ...], ...]:
        rng, plan = self.rng, self.plan
        layers = []
        for layer in range(plan.layers):
            scores = {e: rng.random() ** (1 / p) for e, p in enumerate(self.popularity[layer])}
            layers.append(tuple(sorted(scores, key=lambda e: -scores[e])[: plan.top_k]))
        if plan.odd_rows and rng.random() < 0.06:
            odd = rng.randrange(plan.layers)
            bad = rng.choice([plan.experts, plan.experts + 3, layers[odd][0]])
            layers[odd] = (*layers[odd][:-1], bad)
        return tuple(layers)

    def codes(self) -> tuple[int, ...]:
        if not self.plan.score_bits:
            return ()
        return tuple(self.rng.randrange(2**self.plan.score_bits) for _ in range(self.plan.layers))

    def row(self, request: _Request, time: int | None, flags: int = 0) -> Row:
        phase = PREFILL if request.position < request.prompt else DECODE
        if self.training:
            phase = TRAIN if request.end % 4 else EVAL
        row = Row(
            request=request.name,
            task=request.task,
            scene=request.scene,
            phase=phase,
            position=request.position,
            time=time,
            step=self.step if self.training else None,
            flags=flags,
            ids=self.ids(),
            starts=request.starts,
            cached=request.cached,
            ranked=self.plan.ranked,
            bits=self.plan.score_bits or 8,
            entropy=self.codes(),
            margin=self.codes(),
            pass_id=self.passes % 7,
        )
        request.position += 1
        request.last = row
        return row

    def forward(self, time: int | None) -> list[Row]:
        """One pass: a few rows of each running request, perhaps an end."""
        rng, rows = self.rng, []
        self.passes += 1
        self.step += rng.choice([0, 0, 1, 1, 2])
        for request in list(self.running):
            if rng.random() < 0.2:
                continue
            if rng.random() < 0.05:
                request.position += rng.randrange(1, 12)
            tokens = rng.randrange(1, 9) if request.position < request.prompt else 1
            for _ in range(rng.choice([1, 1, 1, 5]) * tokens):
                ends = request.position + 1 >= request.end
                flags = LAST_OF_REQUEST if ends and request.end % 3 else 0
                if flags and request.last_of_task:
                    flags |= LAST_OF_TASK
                rows.append(self.row(request, time, flags))
                if self.plan.odd_rows and rng.random() < 0.06:
                    rows.append(self._odd(rows[-1]))
                if ends:
                    if not flags:
                        assert request.last is not None
                        rows.append(_end_marker(request.last, last_of_task=request.last_of_task))
                    self.running.remove(request)
                    break
        return rows

    def _odd(self, row: Row) -> Row:
        rng = self.rng
        flags = rng.choice([PADDING, RECOMPUTED, 0, 0])
        phase = rng.choice([row.phase, WARMUP, DRAFT]) if not flags else row.phase
        back = rng.choice([0, 1, 3])
        if row.flags & LAST_OF_REQUEST:
            flags = PADDING
        return row._replace(position=max(0, row.position - back), flags=flags, phase=phase)


def _end_marker(row: Row, *, last_of_task: bool) -> Row:
    flags = CONTEXT | LAST_OF_REQUEST | (LAST_OF_TASK if last_of_task else 0)
    return row._replace(flags=flags)


def make_stream(plan: Plan) -> list[Item]:
    """Draw a stream; the same plan gives the same stream."""
    rng = Random(plan.seed)
    nodes = [_Node(plan, index, rng) for index in range(plan.nodes)]
    shown = dict.fromkeys((node.name for node in nodes), START_US)
    now = START_US + rng.randrange(0, 300 * SECOND)
    items: list[Item] = []
    number = 0
    for _ in range(plan.passes):
        later = now + _pause(plan, rng)
        if plan.heartbeat_s:
            while later - now > plan.heartbeat_s * SECOND:
                now += round(plan.heartbeat_s * SECOND)
                items += [Item(node.name, node.lane, now) for node in nodes]
                shown = dict.fromkeys(shown, now)
        now = later
        node = rng.choice(nodes)
        if len(node.running) < 3 and rng.random() < 0.6:
            number += 1
            node.start(number)
        rows = node.forward(now if plan.timed else None)
        items += [Item(node.name, node.lane, now, row) for row in rows]
        if rows:
            shown[node.name] = now
        if plan.odd_rows and rng.random() < 0.02:
            items.append(Item(node.name, node.lane, now, garbage=True))
        items += [
            Item(other.name, other.lane, now)
            for other in nodes
            if plan.heartbeat_s and now - shown[other.name] > 2 * SECOND
        ]
        shown = {name: now if now - at > 2 * SECOND else at for name, at in shown.items()}
    return _with_lag(items, plan)


def _pause(plan: Plan, rng: Random) -> int:
    if plan.long_gaps and rng.random() < 0.08:
        return rng.choice([29, 31, 45, 95, 125, 310]) * SECOND + rng.randrange(SECOND)
    if rng.random() < 0.1:
        return rng.randrange(2 * SECOND, 8 * SECOND)
    return rng.choice([30_000, 30_000, 120_000, 400_000, 1_300_000])


def _with_lag(items: list[Item], plan: Plan) -> list[Item]:
    """Deliver the last node's items later than the others' by the lag."""
    lag = round(plan.lag_s * SECOND)
    if not lag or plan.nodes == 1:
        return items
    late = f"{plan.site}node-{plan.nodes - 1}"
    return sorted(items, key=lambda item: item.time + (lag if item.node == late else 0))


@dataclass(frozen=True)
class Cut:
    """How items are packed: at most this many rows and this much event time per batch.

    Attributes:
        context: Repeat a continuing request's last two countable rows at the head of its next
            batch.
        repeat: Every so many records, one is delivered twice; 0: never.
    """

    rows: int
    span_us: int = SECOND
    context: bool = True
    repeat: int = 0


ONE_ROW = Cut(1)
NATURAL = Cut(7, 300_000)
LARGEST = Cut(10**6, SECOND - 1)


def _is_countable(row: Row) -> bool:
    return row.phase not in (WARMUP, DRAFT) and not row.flags & (CONTEXT | PADDING | RECOMPUTED)


class _Packer:
    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.records: list[Record] = []
        self.waiting: dict[str, list[Item]] = {}
        self.sequence: dict[str, int] = {}
        self.tail: dict[str, list[Row]] = {}
        self.appended = START_US

    def add(self, item: Item) -> None:
        for node, held in list(self.waiting.items()):
            if held and item.time - held[0].time > self.cut.span_us:
                self.flush(node)
        if item.garbage:
            self.flush(item.node)
            self.records.append(
                Record(item.node, 0, item.lane, readable=False, appended=self.appended)
            )
            return
        if item.row is None:
            self.flush(item.node)
            self._append(item, item.time, ())
            return
        held = self.waiting.setdefault(item.node, [])
        held.append(item)
        if len(held) >= self.cut.rows:
            self.flush(item.node)

    def flush(self, node: str) -> None:
        held = self.waiting.pop(node, [])
        if not held:
            return
        rows = [item.row for item in held if item.row is not None]
        context: list[Row] = []
        if self.cut.context:
            for name in dict.fromkeys(row.request for row in rows):
                context += self.tail.get(name, [])
        watermark = held[-1].time if rows[-1].time is not None else NO_TIME
        self._append(held[-1], watermark, (*context, *rows))
        for row in rows:
            before = self.tail.get(row.request, [])
            if row.flags & LAST_OF_REQUEST:
                self.tail[row.request] = []
            elif _is_countable(row) and (not before or row.position > before[-1].position):
                repeated = row._replace(flags=CONTEXT)
                self.tail[row.request] = [*before, repeated][-2:]

    def _append(self, item: Item, watermark: int, rows: tuple[Row, ...]) -> None:
        sequence = self.sequence.get(item.node, 0)
        self.sequence[item.node] = sequence + 1
        self.appended = max(self.appended, item.time)
        self.records.append(
            Record(item.node, sequence, item.lane, watermark, rows, appended=self.appended)
        )
        if self.cut.repeat and len(self.records) % self.cut.repeat == 0:
            self.records.append(self.records[-1])


def cut_stream(items: list[Item], cut: Cut) -> list[Record]:
    """Pack a stream's items into records of at most 1 s of event time and one node each."""
    packer = _Packer(cut)
    for item in items:
        packer.add(item)
    for node in list(packer.waiting):
        packer.flush(node)
    return packer.records


GARBAGE = b"not a routing batch"


def encode(record: Record) -> bytes:
    """Encode a record through the real codec."""
    return encode_batch(batch_of(record)) if record.readable else GARBAGE


def source_records(records: list[Record]) -> list[SourceRecord]:
    """Records as a source gives them."""
    return [
        SourceRecord(
            offset,
            record.appended,
            encode(record),
            NO_TIME if record.arrived is None else record.arrived,
        )
        for offset, record in enumerate(records)
    ]


def batch_of(record: Record) -> RoutingBatch:
    """Build the routing batch of a readable record."""
    lane = record.lane
    header = BatchHeader(
        node=record.node,
        incarnation=record.incarnation,
        sequence=record.sequence,
        model=lane.model,
        revision=lane.revision,
        experts=lane.experts,
        top_k=lane.top_k,
        layers=np.arange(lane.layers, dtype=np.uint16),
        watermark_us=record.watermark,
        encoded_at_us=record.appended + record.clock_error,
        rank_order=RankOrder.SELECTION_SCORE
        if record.rows and record.rows[0].ranked
        else RankOrder.UNKNOWN,
    )
    rows = record.rows
    if not rows:
        return RoutingBatch(header=header)
    keys = list(dict.fromkeys((row.request, row.task, row.scene) for row in rows))
    first = {(row.request, row.task, row.scene): row for row in reversed(rows)}
    return RoutingBatch(
        header=header,
        requests=Requests(
            ids=tuple(key[0] for key in keys),
            tasks=tuple(key[1] for key in keys),
            scenes=tuple(key[2] for key in keys),
            phase_starts=np.array([first[key].starts for key in keys], np.int32),
            cached_tokens=np.array([first[key].cached for key in keys], np.int32),
        ),
        tokens=Tokens(
            request=np.array(
                [keys.index((row.request, row.task, row.scene)) for row in rows], np.int32
            ),
            position=np.array([row.position for row in rows], np.int32),
            phase=np.array([row.phase for row in rows], np.uint8),
            flags=np.array([row.flags for row in rows], np.uint8),
            event_time_us=None
            if rows[0].time is None
            else np.array([row.time for row in rows], np.int64),
            step=None if rows[0].step is None else np.array([row.step for row in rows], np.int64),
            pass_id=None
            if rows[0].pass_id is None
            else np.array([row.pass_id for row in rows], np.int64),
        ),
        routes=_routes(rows, lane.experts),
    )


def _routes(rows: tuple[Row, ...], experts: int) -> Routes:
    ids = np.array([row.ids for row in rows], np.int64)
    routes = Routes.from_ids(ids, experts, ranked=rows[0].ranked)
    if not rows[0].entropy:
        return routes
    bits = rows[0].bits
    dtype = np.uint16 if bits == 16 else np.uint8
    entropy, margin = (
        Quantised(codes=np.ascontiguousarray(np.array(codes, dtype).T), bits=bits)
        for codes in ([row.entropy for row in rows], [row.margin for row in rows])
    )
    return replace(routes, entropy=entropy, margin=margin)


def write_log(root: Path, partition: str, records: list[Record]) -> None:
    """Write records into a sealed partition of a batch log.

    It belongs to an import, whose partitions wait for each other: in the live domain, coverage
    tells which partition was read late.
    """
    clock = ManualClock(START_US)
    with BatchLogWriter(root, partition, domain="recording", clock=clock) as writer:
        for record in records:
            clock.set_us(record.appended)
            writer.append(encode(record))
        writer.seal()


def with_clock_error(records: list[Record], node: str, error_us: int) -> list[Record]:
    """The same records with one node's clock off."""
    return [
        record._replace(clock_error=error_us) if record.node == node else record
        for record in records
    ]


__all__ = [
    "LARGEST",
    "NATURAL",
    "ONE_ROW",
    "Cut",
    "Item",
    "Plan",
    "cut_stream",
    "encode",
    "make_stream",
    "plans",
    "replace",
    "source_records",
    "with_clock_error",
    "write_log",
]
