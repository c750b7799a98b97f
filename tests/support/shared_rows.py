"""A stream of rows, the deltas that a processor makes of it, and what the windows should hold.

The expected windows are computed from the rows alone, in plain Python.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.accounts import BatchAccount, PartitionProgress
from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.core.emission import (
    Emission,
    FinishedWindows,
    HistogramKey,
    Histograms,
    LaneKey,
    SharedDelta,
    WindowGroup,
)
from moescope.core.histograms import SLOTS
from moescope.core.metrics import HISTOGRAM_METRICS, METRIC_NAMES
from moescope.core.router_sums import (
    LAGS,
    POSITIONS,
    ROUTER_SUMS,
    LagSums,
    PositionCounts,
    RouterSum,
    SimilaritySums,
)
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.storage.shared import WindowShapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

SECOND = 1_000_000
MINUTE = 60 * SECOND
BASE = 1_700_000_100 * SECOND
"""A multiple of the grid of trailing references (300 s)."""
EXPERTS = 4
LAYERS = (0, 2)
GAPS = 60
STEP_PANE = 10
SIMILARITY_PANE = 5 * SECOND
LANE = LaneKey("live", "m", "r", "model", "full", 1.0, EXPERTS, 1, LAYERS)
SHAPES = WindowShapes(
    time=((SECOND, SECOND), (5 * SECOND, 5 * SECOND), (60 * SECOND, 20 * SECOND)),
    step=((20, 10),),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One accepted token: one expert per layer."""

    time_us: int
    request: str
    task: str
    experts: tuple[int, int]
    scene: str = "chat"
    node: str = "n"
    last_of_task: bool = False
    step: int | None = None
    lane: LaneKey = LANE

    @property
    def position(self) -> int:
        """Index of the sampled position that the row is said to be at."""
        return self.time_us // 7 % len(POSITIONS)

    @property
    def entropy(self) -> int:
        """Fixed-point entropy that the row is said to have."""
        return self.time_us % 1009


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a partition: its rows, and the watermark after it."""

    rows: tuple[Row, ...]
    watermark_us: int
    step_low: int = END_OF_TIME


@dataclass(slots=True)
class _Sum:
    rows: list[Row] = field(default_factory=list)
    requests: int = 0
    gaps: list[int] = field(default_factory=lambda: [0] * GAPS)


class RowProcessor:
    """Makes emissions of consecutive records, with a processor's memory of requests."""

    def __init__(self, partition: str = "p", lane: LaneKey = LANE) -> None:
        self.partition = partition
        self.lane = lane
        self.offset = 0
        self._last_pane: dict[tuple[ScopeKind, str, str], int] = {}
        self._known: set[tuple[object, ...]] = set()
        self._similar: dict[int, list[Row]] = defaultdict(list)
        self._similar_to = NO_TIME

    def emission(self, records: Sequence[Record], *, sealed: bool = False) -> Emission:
        """One commit over records."""
        sums: dict[tuple[object, ...], _Sum] = defaultdict(_Sum)
        similar: list[SharedDelta] = []
        for record in records:
            for row in record.rows:
                self._add(sums, row)
                start = row.time_us - row.time_us % SIMILARITY_PANE
                if start >= self._similar_to:
                    self._similar[start].append(row)
            similar += self._close_similar(record.watermark_us)
        if sealed:
            similar += self._close_similar(END_OF_TIME)
        first = self.offset
        self.offset += len(records)
        return Emission(
            progress=(
                PartitionProgress(
                    partition=self.partition,
                    domain=self.lane.domain,
                    emitted_to=self.offset,
                    replay_from=0,
                    state=b"",
                    watermark_us=records[-1].watermark_us,
                    step_low=records[-1].step_low,
                    sealed=sealed,
                ),
            ),
            deltas=(*(self._delta(key, each) for key, each in sums.items()), *similar),
            batches=tuple(
                account(self.partition, first + number, len(record.rows))
                for number, record in enumerate(records)
            ),
        )

    def _close_similar(self, watermark_us: int) -> list[SharedDelta]:
        """Similarity panes that end by a watermark."""
        due = [start for start in self._similar if start + SIMILARITY_PANE <= watermark_us]
        if watermark_us != END_OF_TIME:
            self._similar_to = max(self._similar_to, watermark_us - watermark_us % SIMILARITY_PANE)
        return [self._similarity(start, self._similar.pop(start)) for start in sorted(due)]

    def _similarity(self, start_us: int, rows: list[Row]) -> SharedDelta:
        layers = np.zeros(len(LAYERS), np.int64)
        return SharedDelta(
            lane=self.lane, phase="decode", kind=WindowKind.TIME, scope_kind=ScopeKind.ALL,
            scope_value="", pane=start_us + SIMILARITY_PANE - SECOND,
            counts=np.zeros((len(LAYERS), EXPERTS), np.uint32),
            dropped=np.zeros(len(LAYERS), np.uint64), seen=0, first_time_us=NO_TIME,
            last_time_us=NO_TIME,
            similarity=SimilaritySums(
                start_us, SIMILARITY_PANE, counts_of(rows).astype(np.int64) << 20,
                layers + sum(row.time_us % 97 for row in rows), layers + len(rows), layers,
            ),
        )  # fmt: skip

    def _add(self, sums: dict[tuple[object, ...], _Sum], row: Row) -> None:
        pane = row.time_us - row.time_us % SECOND
        for scope_kind, value in ((ScopeKind.ALL, ""), (ScopeKind.NODE, row.node)):
            each = sums[WindowKind.TIME, scope_kind, value, "", pane]
            each.rows.append(row)
            last = self._last_pane.get((scope_kind, value, row.request))
            if last is None or pane > last:
                distance = GAPS if last is None else (pane - last) // SECOND
                each.gaps[min(distance, GAPS) - 1] += 1
                self._last_pane[scope_kind, value, row.request] = pane
        minute = row.time_us - row.time_us % MINUTE
        self._add_once(sums[WindowKind.TASK, ScopeKind.ALL, "", row.task, minute], row, row.task)
        if row.step is not None:
            pane = row.step - row.step % STEP_PANE
            window = row.step // STEP_PANE
            self._add_once(sums[WindowKind.STEP, ScopeKind.ALL, "", "", pane], row, window)

    def _add_once(self, each: _Sum, row: Row, where: object) -> None:
        each.rows.append(row)
        if (where, row.request) not in self._known:
            self._known.add((where, row.request))
            each.requests += 1

    def _delta(self, key: tuple[object, ...], each: _Sum) -> SharedDelta:
        kind, scope_kind, scope_value, task, pane = key
        counts = counts_of(each.rows)
        scenes: dict[str, int] = defaultdict(int)
        for row in each.rows:
            scenes[row.scene] += 1
        compared = kind is WindowKind.TIME and scope_kind is ScopeKind.ALL
        times = [row.time_us for row in each.rows]
        return SharedDelta(
            lane=self.lane,
            phase="decode",
            kind=WindowKind(str(kind)),
            scope_kind=ScopeKind(str(scope_kind)),
            scope_value=str(scope_value),
            pane=int(str(pane)),
            counts=counts,
            dropped=np.zeros(len(LAYERS), np.uint64),
            seen=len(each.rows),
            task=str(task),
            first_time_us=min(times),
            last_time_us=max(times),
            request_gaps=np.array(each.gaps if kind is WindowKind.TIME else [], np.int64),
            requests=each.requests,
            scene_tokens=dict(scenes),
            last_of_task=any(row.last_of_task for row in each.rows),
            router=_router(each.rows),
            positions=_positions(each.rows) if compared else None,
            lags=_lags(each.rows) if compared else None,
        )


def counts_of(rows: Sequence[Row]) -> NDArray[np.uint32]:
    """Assignments [L, E]."""
    counts = np.zeros((len(LAYERS), EXPERTS), np.uint32)
    for row in rows:
        for layer, expert in enumerate(row.experts):
            counts[layer, expert] += 1
    return counts


def _router(rows: Sequence[Row]) -> NDArray[np.int64]:
    sums = np.zeros((len(LAYERS), ROUTER_SUMS), np.int64)
    sums[:, RouterSum.ENTROPY_ROWS] = len(rows)
    sums[:, RouterSum.ENTROPY] = sum(row.entropy for row in rows)
    return sums


def _positions(rows: Sequence[Row]) -> PositionCounts:
    dense = np.zeros((len(POSITIONS), len(LAYERS), EXPERTS), np.int64)
    for row in rows:
        for layer, expert in enumerate(row.experts):
            dense[row.position, layer, expert] += 1
    index = np.flatnonzero(dense)
    return PositionCounts(index, dense.reshape(-1)[index])


def _lags(rows: Sequence[Row]) -> LagSums:
    overlap = np.zeros((len(LAYERS), LAGS), np.int64)
    for row in rows:
        overlap[:, row.time_us % LAGS] += 1
    return LagSums(overlap, overlap * 2)


def account(partition: str, offset: int, rows: int) -> BatchAccount:
    """Accounting of a record."""
    return BatchAccount(
        partition=partition, offset=offset, append_time_us=BASE, node="n", incarnation=1,
        sequence=offset, model="m", revision="r", record_bytes=100, rows=rows,
        accepted_rows=rows, context_rows=0, padding_rows=0, recomputed_rows=0, stale_rows=0,
        late_rows=0, uncounted_phase_rows=0, suspicious_pairs=0, lost_rows=0, rejected_rows=0,
        verdict="accepted", reasons=("because",),
    )  # fmt: skip


def _share_values(group: WindowGroup) -> NDArray[np.float64]:
    values = np.full((len(group), len(group.lane.layers), len(METRIC_NAMES)), np.nan)
    values[:, :, 0] = group.counts.max(axis=2)
    if group.trailing is not None:
        values[:, :, 1] = group.trailing.sum(axis=1)
    if group.router is not None:
        values[:, :, 2] = group.router[:, :, RouterSum.ENTROPY]
    for window, positions in enumerate(group.positions):
        if positions is not None:
            # Each count weighs its index, so that no other counts give the same.
            values[window, :, 3] = (positions.index * positions.count).sum()
    for window, panes in enumerate(group.similarity):
        values[window, :, 4] = sum(int(pane.start_us // SECOND) for pane in panes)
        for pane in panes:
            values[window, :, 5] = np.nan_to_num(values[window, :, 5]) + pane.squares
    for window, lags in enumerate(group.lags):
        if lags is not None:
            values[window, :, 6] = (lags.pairs * np.arange(LAGS)).sum(axis=1)
    return values


def share_finisher(group: WindowGroup) -> tuple[FinishedWindows, Histograms]:
    """Finishing that is easy to check: the largest count, and plain sums of everything else."""
    values = _share_values(group)
    histograms: Histograms = {}
    for window in range(len(group)):
        if group.kind is WindowKind.TOKEN and not group.complete[window]:
            continue
        close = int(group.close_time_us[window])
        key = HistogramKey(
            lane=group.lane, phase=group.phase,
            minute_us=0 if close == NO_TIME else close - close % MINUTE, kind=group.kind,
            size=group.size, stride=group.stride, scope_kind=group.scope_kind,
            scope_value=group.scope_value, band=str(int(group.requests[window]).bit_length()),
        )  # fmt: skip
        counts = histograms.setdefault(
            key, np.zeros((len(HISTOGRAM_METRICS), len(group.lane.layers), SLOTS), np.int64)
        )
        for layer in range(len(group.lane.layers)):
            counts[0, layer, min(int(values[window, layer, 0]), SLOTS - 1)] += 1
    tokens = group.counts.sum(axis=2, dtype=np.int64) // group.lane.top_k
    return FinishedWindows(group=group, values=values, tokens=tokens), histograms


def make_records(
    seed: int, number: int, *, late_us: int = 0, longest_us: int = 100 * SECOND
) -> list[Record]:
    """Random records of one partition; event times move on by up to `longest_us` each.

    Args:
        seed: Of the random numbers.
        number: How many records.
        late_us: How far behind the watermark a row may be; 0 keeps every promise.
        longest_us: The largest step of event time between two records.
    """
    chance = random.Random(seed)
    records: list[Record] = []
    now, watermark, step = BASE, BASE - 10 * SECOND, 0
    ended: dict[str, int] = defaultdict(int)
    for _ in range(number):
        now += chance.choice((SECOND // 2, 3 * SECOND, chance.randrange(longest_us)))
        step += chance.randrange(4)
        rows = []
        for _ in range(chance.randrange(1, 6)):
            time_us = now + chance.randrange(SECOND)
            late = late_us and chance.random() < 0.2
            if late:
                time_us = max(BASE, watermark - chance.randrange(late_us))
            name = chance.choice("abc")
            task = f"{name}{ended[name]}"
            last = chance.random() < 0.05
            rows.append(
                Row(
                    time_us=time_us,
                    request=f"late-{chance.random()}" if late else f"q-{task}",
                    task=task,
                    experts=(chance.randrange(EXPERTS), chance.randrange(2)),
                    scene=chance.choice(("chat", "code")),
                    node=chance.choice(("n", "o")),
                    last_of_task=last,
                    step=step,
                )
            )
        rows.sort(key=lambda row: row.time_us)
        watermark = max(watermark, now - chance.randrange(5 * SECOND))
        now = max(now, *(row.time_us for row in rows))
        records.append(Record(tuple(rows), watermark, step))
    return records


@dataclass(slots=True)
class Expected:
    """What one window should hold."""

    counts: list[list[int]]
    requests: set[str]
    first_us: int
    last_us: int
    rows: list[Row]

    @property
    def seen(self) -> int:
        """Accepted rows: each has one assignment per layer."""
        return sum(self.counts[0])

    @property
    def scenes(self) -> dict[str, int]:
        """Rows per scene, in order of name."""
        names = sorted({row.scene for row in self.rows})
        return {name: sum(row.scene == name for row in self.rows) for name in names}


def _expected(rows: Iterable[Row]) -> Expected:
    listed = list(rows)
    counts = [[0] * EXPERTS for _ in LAYERS]
    for row in listed:
        for layer, expert in enumerate(row.experts):
            counts[layer][expert] += 1
    return Expected(
        counts,
        {row.request for row in listed},
        min(row.time_us for row in listed),
        max(row.time_us for row in listed),
        listed,
    )


def expected_time_windows(rows: Iterable[Row]) -> dict[tuple[str, str, int, int, int], Expected]:
    """(scope kind, value, size, slide, start) → contents."""
    members: dict[tuple[str, str, int, int, int], list[Row]] = defaultdict(list)
    for row in rows:
        for size, slide in SHAPES.time:
            start = row.time_us // slide * slide
            while start > row.time_us - size:
                members["all", "", size, slide, start].append(row)
                members["node", row.node, size, slide, start].append(row)
                start -= slide
    return {key: _expected(found) for key, found in members.items()}


def expected_step_windows(rows: Iterable[Row]) -> dict[int, Expected]:
    """First step → contents of windows of 20 steps, every 10."""
    members: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row.step is not None:
            for start in (row.step // 10 * 10, row.step // 10 * 10 - 10):
                members[start].append(row)
    return {start: _expected(found) for start, found in members.items()}


def expected_task_windows(rows: Iterable[Row]) -> dict[tuple[str, int], Expected]:
    """(task, start) → contents, read off the rows in the order of their times."""
    windows: dict[tuple[str, int], list[Row]] = {}
    current: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.time_us):
        open_rows = current.get(row.task)
        if open_rows:
            last = open_rows[-1].time_us
            # What came before this minute decides: a flag in the same minute does not cut it.
            minute = row.time_us // MINUTE
            ended = any(each.last_of_task for each in open_rows)
            gap = row.time_us - last
            cut = minute != last // MINUTE and gap >= (62 if ended else 600) * SECOND
            old = minute - open_rows[0].time_us // MINUTE >= 60
            if cut or old:
                open_rows = None
        if not open_rows:
            open_rows = current[row.task] = []
            windows[row.task, row.time_us] = open_rows
        open_rows.append(row)
    return {key: _expected(found) for key, found in windows.items()}


def with_domain(lane: LaneKey, domain: str) -> LaneKey:
    """The same lane in another watermark domain."""
    return replace(lane, domain=domain)
