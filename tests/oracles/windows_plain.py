"""The whole roll-up in plain Python, written from docs/explanation/windows.md alone.

Rows in, windows out: loops over rows and lists of rows, integers and exact fractions. It shares
no code with moescope and is as slow as it looks.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SECOND = 1_000_000
MINUTE = 60 * SECOND
NO_TIME = -(2**63)
END_OF_TIME = 2**63 - 1

PREFILL, DECODE, EVAL, TRAIN, WARMUP, DRAFT = range(6)
PHASE_NAMES = ("prefill", "decode", "eval", "train", "warmup", "draft")
CONTEXT, PADDING, RECOMPUTED, LAST_OF_REQUEST, LAST_OF_TASK = 1, 2, 4, 8, 16

SILENCE_US = 30 * SECOND
AGE_US = 120 * SECOND
FORGET_US = 600 * SECOND
BEHIND_US = 10 * SECOND
SKEW_US = 60 * SECOND
IDENTICAL_RUN = 33
ZERO_LAYER_ROWS = 64
FIXED_POINT = 2**20
POSITIONS = (16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 768, 1024, 2048)
LAGS = 64
SIMILARITY_US = {PREFILL: SECOND, DECODE: 5 * SECOND}


class Lane(NamedTuple):
    """What is constant over comparable windows (origin and fidelity are those of full logs)."""

    model: str
    revision: str
    experts: int
    top_k: int
    layers: int


class Row(NamedTuple):
    """One token as a producer logs it.

    `ids` holds k expert ids per layer, the first-ranked one first where `ranked`; `entropy` and
    `margin` hold a code of `bits` bits per layer, or nothing.
    """

    request: str
    task: str
    scene: str
    phase: int
    position: int
    time: int | None
    step: int | None
    flags: int
    ids: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...] = (0, -1, -1, -1, -1, -1)
    cached: int = 0
    ranked: bool = False
    bits: int = 8
    entropy: tuple[int, ...] = ()
    margin: tuple[int, ...] = ()
    pass_id: int | None = None


class Record(NamedTuple):
    """One record of a partition: a batch of one node, a heartbeat (no rows), or garbage."""

    node: str
    sequence: int
    lane: Lane
    watermark: int = NO_TIME
    rows: tuple[Row, ...] = ()
    incarnation: int = 1
    clock_error: int = 0
    readable: bool = True
    appended: int = 0
    arrived: int | None = None


@dataclass(eq=False)
class Accepted:
    """An accepted row, and at which layers it is counted.

    `before` is the row that it makes a pair with, `paired` the layers at which that one is sound;
    `earlier` holds the rows 1, 2, … positions before it, as far as they are remembered. `life`
    tells a request that was forgotten from the new one of the same name.
    """

    row: Row
    node: str
    lane: Lane
    good: list[bool]
    before: Row | None = None
    paired: list[bool] = field(default_factory=list)
    earlier: list[Accepted] = field(default_factory=list)
    life: int = 0


@dataclass(eq=False)
class TokenWindow:
    """A token window, open or closed."""

    lane: Lane
    request: str
    phase: int
    size: int
    stride: int
    first_position: int
    anchor: int
    rows: list[Accepted] = field(default_factory=list)
    reason: str = ""

    @property
    def expected(self) -> int:
        """Rows that should have been seen."""
        if self.reason in ("complete", "position_beyond"):
            return self.size
        return self.rows[-1].row.position - self.anchor - self.first_position + 1

    @property
    def complete(self) -> bool:
        """Everything expected was seen, and N were expected."""
        return self.expected == self.size == len(self.rows)

    @property
    def first_time(self) -> int | None:
        """Event time of the first row."""
        return self.rows[0].row.time

    @property
    def close_time(self) -> int | None:
        """Logical close time."""
        first, last = self.rows[0].row.time, self.rows[-1].row.time
        if first is None or last is None:
            return None
        if self.reason == "silence":
            return last + SILENCE_US
        return first + AGE_US if self.reason == "age" else last


@dataclass
class Account:
    """What happened to one record's rows."""

    verdict: str
    rows: int = 0
    accepted: int = 0
    context: int = 0
    padding: int = 0
    recomputed: int = 0
    stale: int = 0
    late: int = 0
    uncounted_phase: int = 0
    suspicious: int = 0


@dataclass
class _Request:
    life: int
    greatest: int = -1
    run: int = 0
    last_time: int | None = None
    recent: list[Accepted] = field(default_factory=list)
    open: dict[tuple[int, int, int, int], TokenWindow] = field(default_factory=dict)
    closed: set[tuple[int, int, int, int]] = field(default_factory=set)


class Watermarks:
    """The watermark of a partition from those of its nodes."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        self.skewed: set[str] = set()
        self.partition = NO_TIME
        self.arrived: int | None = None
        self.arrival_clock = 0
        self.waiting: dict[str, tuple[int, int]] = {}
        self.given_up: set[str] = set()

    def show(self, record: Record) -> None:
        """Take in a record's watermark."""
        if abs(record.clock_error) > SKEW_US:
            self.skewed.add(record.node)
            self.given_up.discard(record.node)
            self.waiting.pop(record.node, None)
        else:
            self.skewed.discard(record.node)
        known = self.nodes.get(record.node, NO_TIME)
        self.nodes[record.node] = max(known, record.watermark)
        if record.arrived is not None and self.arrived is not None:
            # What is longer than a second was nobody's fault: no record came from anyone.
            self.arrival_clock += min(max(record.arrived - self.arrived, 0), SECOND)
        self.arrived = record.arrived
        taking_part = {
            node: mark
            for node, mark in self.nodes.items()
            if node not in self.skewed and mark != NO_TIME
        }
        if not taking_part:
            return
        fastest = max(taking_part.values())
        for node, mark in taking_part.items():
            if fastest - mark <= BEHIND_US:
                self.waiting.pop(node, None)
                self.given_up.discard(node)
            elif record.arrived is None or self._has_waited_enough(node, mark):
                self.given_up.add(node)
        waited_for = [mark for node, mark in taking_part.items() if node not in self.given_up]
        self.partition = max(self.partition, min(waited_for))

    def _has_waited_enough(self, node: str, mark: int) -> bool:
        """Whether others' records came for 10 s while a node that is behind gained nothing."""
        now = self.arrival_clock
        since, mark_then = self.waiting.setdefault(node, (now, mark))
        if now - since < 10 * SECOND:
            return False
        if mark - mark_then >= 1.5 * (now - since):
            self.waiting[node] = (now, mark)
            return False
        return True


class Partition:
    """Reads the records of one partition in order."""

    def __init__(self, token_windows: Sequence[tuple[int, int]]) -> None:
        self.similarity: dict[tuple[Lane, int, int], list[Accepted]] = {}
        self._similarity_open: dict[tuple[Lane, int, int], list[Accepted]] = {}
        self.declared = [(size, stride or size) for size, stride in token_windows]
        self.accepted: list[Accepted] = []
        self.executed: list[Accepted] = []
        self.windows: list[TokenWindow] = []
        self.accounts: list[Account] = []
        self.watermarks = Watermarks()
        self.task_ends: list[tuple[Lane, str, int, int | None]] = []
        self._requests: dict[tuple[Lane, str], _Request] = {}
        self._lives = 0
        self._identities: set[tuple[str, int, int]] = set()

    def read(self, record: Record) -> None:
        """Read the next record."""
        identity = (record.node, record.incarnation, record.sequence)
        if not record.readable:
            self.accounts.append(Account("dead_letter"))
            return
        if identity in self._identities:
            self.accounts.append(Account("duplicate", rows=len(record.rows)))
            return
        self._identities.add(identity)
        account = Account("accepted", rows=len(record.rows))
        self.accounts.append(account)
        accepted: list[Accepted] = []
        before: Row | None = None
        latest: dict[str, Row] = {}
        for row in record.rows:
            found = self._row(row, before, latest, record, account)
            if found:
                accepted.append(found)
                self._remember_similar(found)
            before = None if _is_skipped(row) else row
        gate(accepted, record)
        account.accepted = len(accepted)
        account.suspicious = sum(not good for one in accepted for good in one.good)
        self.accepted += accepted
        rest = [
            Accepted(row, record.node, record.lane, [True] * record.lane.layers)
            for row in record.rows
            if _is_skipped(row) and not row.flags & PADDING
        ]
        gate(rest, record)
        self.executed += rest
        self.watermarks.show(record)
        self._by_watermark(self.watermarks.partition)
        for key in list(self._similarity_open):
            if _similarity_end(key) <= self.watermarks.partition:
                self.similarity[key] = self._similarity_open.pop(key)

    def _remember_similar(self, found: Accepted) -> None:
        row = found.row
        if row.time is not None and row.phase in SIMILARITY_US:
            key = (found.lane, row.phase, row.time // SIMILARITY_US[row.phase])
            if _similarity_end(key) > self.watermarks.partition:
                self._similarity_open.setdefault(key, []).append(found)

    def seal(self) -> None:
        """Nothing follows: close what is open."""
        for request in self._requests.values():
            self._close(request, list(request.open), "sealed")
        self.similarity |= self._similarity_open

    def _row(
        self,
        row: Row,
        before: Row | None,
        latest: dict[str, Row],
        record: Record,
        account: Account,
    ) -> Accepted | None:
        key = (record.lane, row.request)
        if row.flags & LAST_OF_TASK:
            self.task_ends.append((record.lane, row.task, row.phase, row.time))
        if row.flags & CONTEXT:
            account.context += 1
            latest[row.request] = row
            if row.flags & LAST_OF_REQUEST:
                self._end(key)
                del latest[row.request]
            return None
        if _is_skipped(row):
            _account_skipped(row, account)
            return None
        request = self._requests.get(key) or self._new_request(key)
        if _passed(request.last_time, row.time, FORGET_US):
            assert row.time is not None
            self._by_time(request, row.time)
            request = self._new_request(key)
        if row.position <= request.greatest:
            account.stale += 1
            return None
        found = Accepted(row, record.node, record.lane, [True] * record.lane.layers)
        found.life = request.life
        _pair(request, found, latest.get(row.request))
        latest[row.request] = row
        request.run = request.run + 1 if before and _identical(before, row) else 1
        _look_back(request, found)
        self._before(request, row)
        account.late += self._count(request, found)
        request.greatest, request.last_time = row.position, row.time
        if row.flags & LAST_OF_REQUEST:
            self._end(key)
            del latest[row.request]
        return found

    def _new_request(self, key: tuple[Lane, str]) -> _Request:
        self._lives += 1
        self._requests[key] = _Request(self._lives)
        return self._requests[key]

    def _before(self, request: _Request, row: Row) -> None:
        """Close what row ends before it is counted itself."""
        if row.time is not None:
            self._by_time(request, row.time)
        self._close(request, [key for key in request.open if key[0] != row.phase], "phase_end")
        self._close(
            request,
            [
                key
                for key, window in request.open.items()
                if row.position - window.anchor >= window.first_position + window.size
            ],
            "position_beyond",
        )

    def _count(self, request: _Request, found: Accepted) -> int:
        """Put a row into its token windows; say for how many declared sizes it is late."""
        row = found.row
        start = row.starts[row.phase]
        if start < 0 and row.phase in {DECODE, EVAL}:
            return 0
        anchor = max(start, row.cached, 0)
        relative = row.position - anchor
        late = 0
        for size, stride in self.declared:
            was_late = False
            for index in range(relative // stride + 1 if relative >= 0 else 0):
                first = index * stride
                if not first <= relative < first + size:
                    continue
                key = (row.phase, size, stride, first)
                if key in request.closed:
                    was_late = True
                    continue
                window = request.open.setdefault(
                    key,
                    TokenWindow(found.lane, row.request, row.phase, size, stride, first, anchor),
                )
                window.rows.append(found)
                if relative == first + size - 1:
                    self._close(request, [key], "complete")
            late += was_late
        return late

    def _end(self, key: tuple[Lane, str]) -> None:
        request = self._requests.pop(key, None)
        if request is not None:
            self._close(request, list(request.open), "request_end")

    def _close(
        self, request: _Request, keys: Iterable[tuple[int, int, int, int]], reason: str
    ) -> None:
        for key in keys:
            window = request.open.pop(key)
            window.reason = reason
            request.closed.add(key)
            self.windows.append(window)

    def _by_watermark(self, watermark: int) -> None:
        for key, request in list(self._requests.items()):
            self._by_time(request, watermark)
            if _passed(request.last_time, watermark, FORGET_US):
                del self._requests[key]

    def _by_time(self, request: _Request, now: int) -> None:
        """Close what is silent or old by now; what would have closed first decides."""
        silent = _passed(request.last_time, now, SILENCE_US)
        for key, window in list(request.open.items()):
            aged = _passed(window.first_time, now, AGE_US)
            if aged and silent:
                assert window.first_time is not None
                assert request.last_time is not None
                aged = window.first_time + AGE_US < request.last_time + SILENCE_US
            if aged or silent:
                self._close(request, [key], "age" if aged else "silence")


def _passed(since: int | None, now: int | None, limit: int) -> bool:
    return since is not None and now is not None and now - since >= limit


def _pair(request: _Request, found: Accepted, before: Row | None) -> None:
    row = found.row
    doubted = request.greatest == row.position - 1 and request.run >= IDENTICAL_RUN
    if before and before.position == row.position - 1 and not doubted:
        found.before = before


def _look_back(request: _Request, found: Accepted) -> None:
    if found.row.position != request.greatest + 1:
        request.recent = []
    if request.run >= IDENTICAL_RUN:
        found.good = [False] * found.lane.layers
        request.recent = []
    elif found.row.time is not None:
        found.earlier = request.recent[::-1]
        request.recent = [*request.recent, found][-LAGS:]


def _similarity_end(key: tuple[Lane, int, int]) -> int:
    return (key[2] + 1) * SIMILARITY_US[key[1]]


def gate(accepted: Sequence[Accepted], record: Record) -> None:
    """Mark what else is suspicious in one batch."""
    lane = record.lane
    sound_layers = [True] * lane.layers
    if lane.top_k == 1 and lane.experts > 1 and len(record.rows) >= ZERO_LAYER_ROWS:
        for layer in range(lane.layers):
            sound_layers[layer] = any(row.ids[layer] != (0,) for row in record.rows)
    for one in accepted:
        for layer, sound in enumerate(sound_layers):
            one.good[layer] &= sound and _is_sound(one.row.ids[layer], lane)
        if one.before:
            one.paired = [
                sound and _is_sound(one.before.ids[layer], lane)
                for layer, sound in enumerate(sound_layers)
            ]


def _is_sound(ids: tuple[int, ...], lane: Lane) -> bool:
    return len(set(ids)) == lane.top_k and max(ids) < lane.experts


def _is_skipped(row: Row) -> bool:
    if row.flags & CONTEXT:
        return False
    return bool(row.flags & (PADDING | RECOMPUTED)) or row.phase in (WARMUP, DRAFT)


def _identical(before: Row, row: Row) -> bool:
    return (
        (row.request, row.position) == (before.request, before.position + 1)
        and [sorted(ids) for ids in row.ids] == [sorted(ids) for ids in before.ids]
    )  # fmt: skip


def _account_skipped(row: Row, account: Account) -> None:
    if row.flags & PADDING:
        account.padding += 1
    elif row.flags & RECOMPUTED:
        account.recomputed += 1
    else:
        account.uncounted_phase += 1


def counts_of(rows: Sequence[Accepted], lane: Lane) -> list[list[int]]:
    """Assignments per layer and expert."""
    counts = [[0] * lane.experts for _ in range(lane.layers)]
    for one in rows:
        for layer, ids in enumerate(one.row.ids):
            if one.good[layer]:
                for expert in ids:
                    counts[layer][expert] += 1
    return counts


def router_of(rows: Sequence[Accepted], lane: Lane) -> list[list[int]]:
    """Eight sums per layer, in the order of the documentation's table."""
    sums = [[0] * 8 for _ in range(lane.layers)]
    for one in rows:
        for layer, out in enumerate(sums):
            if not one.good[layer]:
                continue
            for column, codes, value in (
                (0, one.row.entropy, _entropy_share), (2, one.row.margin, _margin)
            ):  # fmt: skip
                if codes:
                    score = value(codes[layer], one.row.bits, lane.experts)
                    if math.isfinite(score) and score >= 0:
                        out[column] += 1
                        out[column + 1] += round(score * FIXED_POINT)
            if one.before and one.paired[layer]:
                mine, other = one.row.ids[layer], one.before.ids[layer]
                out[4] += 1
                out[5] += len(set(mine) & set(other))
                if one.row.ranked:
                    out[6] += 1
                    out[7] += mine[0] != other[0]
    return sums


def _single(value: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


def _half(code: int) -> float:
    (value,) = struct.unpack("<e", struct.pack("<H", code))
    return float(value)


def _entropy_share(code: int, bits: int, experts: int) -> float:
    if experts == 1:
        return math.nan
    entropy = _half(code) if bits == 16 else code / (2**bits - 1) * math.log(experts)
    return _single(entropy) / math.log(experts)


def _margin(code: int, bits: int, _: int) -> float:
    if bits == 16:
        return _half(code)
    if code == 0:
        return 0.0
    return _single(2 ** (0.4 * (code - 13)) if bits == 4 else 2 ** ((code - 215) / 20))


def positions_of(rows: Sequence[Accepted]) -> Counter[tuple[int, int, int]]:
    """Assignments by (place in POSITIONS, layer, expert)."""
    found: Counter[tuple[int, int, int]] = Counter()
    for one in rows:
        row = one.row
        start = 0 if row.phase == PREFILL else row.starts[row.phase]
        if start < 0:
            if row.phase != TRAIN:
                continue
            start = 0
        if row.position - start in POSITIONS:
            place = POSITIONS.index(row.position - start)
            for layer, ids in enumerate(row.ids):
                if one.good[layer]:
                    found.update((place, layer, expert) for expert in ids)
    return found


def lags_of(rows: Sequence[Accepted], lane: Lane) -> list[list[tuple[int, int]]]:
    """(Overlap, pairs) by layer and lag."""
    found = []
    for layer in range(lane.layers):
        sums = [(0, 0)] * LAGS
        for one in rows:
            for lag, other in enumerate(one.earlier):
                if one.good[layer] and other.good[layer]:
                    overlap, pairs = sums[lag]
                    shared = len(set(one.row.ids[layer]) & set(other.row.ids[layer]))
                    sums[lag] = (overlap + shared, pairs + 1)
        found.append(sums)
    return found


def similarity_of(
    requests: Sequence[Sequence[Accepted]], lane: Lane, fewest_tokens: int
) -> list[tuple[list[int], int, int, int]]:
    """Per layer: sum of the requests' vectors, of their squares, requests, requests left out."""
    found = []
    k = lane.top_k
    for layer in range(lane.layers):
        total, squares, number, left_out = [0] * lane.experts, 0, 0, 0
        for rows in requests:
            c = counts_of(rows, lane)[layer]
            tokens = sum(c) // k
            if tokens < fewest_tokens:
                continue
            length = (sum(x * x for x in c) - k * tokens) * tokens / (tokens - 1)
            if length <= 0:
                left_out += 1
                continue
            w = [round(x / math.sqrt(length) * FIXED_POINT) for x in c]
            total = [a + b for a, b in zip(total, w, strict=True)]
            squares += sum(x * x for x in w)
            number += 1
        found.append((total, squares, number, left_out))
    return found


def exponent(rows_closed: int, budget: int) -> int:
    """Smallest j ≥ 0 with rows ≤ budget · 2^j, which is max(0, ⌈log2(rows / budget)⌉)."""
    j = 0
    while budget << j < rows_closed:
        j += 1
    return j


def rows_closed_per_minute(windows: Sequence[TokenWindow]) -> Counter[int]:
    """(Window, layer) pairs by the minute of their logical close time."""
    closed: Counter[int] = Counter()
    for window in windows:
        if window.close_time is not None:
            closed[window.close_time // MINUTE] += window.lane.layers
    return closed


def time_windows(
    accepted: Sequence[Accepted], size: int, slide: int
) -> dict[tuple[Lane, int, str, str, int], list[Accepted]]:
    """Rows of each time window by (lane, phase, scope kind, scope value, start)."""
    found: dict[tuple[Lane, int, str, str, int], list[Accepted]] = defaultdict(list)
    for one in accepted:
        if one.row.time is None:
            continue
        pane = one.row.time // SECOND * SECOND
        newest = pane // slide * slide
        scopes = (("all", ""), ("node", one.node), ("scene", one.row.scene))
        for start in range(newest, pane - size, -slide):
            for kind, value in scopes:
                found[one.lane, one.row.phase, kind, value, start].append(one)
    return found


def passes_of(
    accepted: Sequence[Accepted], executed: Sequence[Accepted], step_pane: int
) -> dict[tuple[str, Lane, int, str, str, int], list[list[int]]]:
    """Imbalances of each pass by layer, in steps of 2^-20, of each pane's passes.

    Args:
        accepted: Accepted rows; they say which phases a pass is of.
        executed: Rows that were computed, too.
        step_pane: Steps of a step pane.

    Returns:
        By (time or step, lane, phase, scope kind, scope value, start of the pane): per layer the
        imbalance of each pass that has a sound row there.
    """
    passes: dict[tuple[Lane, str, int, int], list[Accepted]] = defaultdict(list)
    for one in (*accepted, *executed):
        if one.row.time is not None and one.row.pass_id is not None:
            passes[one.lane, one.node, one.row.time, one.row.pass_id].append(one)
    is_accepted = {id(one) for one in accepted}
    found: dict[tuple[str, Lane, int, str, str, int], list[list[int]]] = {}
    for (lane, node, time, _), rows in passes.items():
        panes = [("time", "all", "", time // SECOND * SECOND)]
        panes.append(("time", "node", node, panes[0][-1]))
        steps = [one.row.step for one in rows if one.row.step is not None]
        if steps:
            panes.append(("step", "all", "", max(steps) // step_pane * step_pane))
        for phase in {one.row.phase for one in rows if id(one) in is_accepted}:
            for kind, scope, value, start in panes:
                sums = found.setdefault(
                    (kind, lane, phase, scope, value, start), [[] for _ in range(lane.layers)]
                )
                for layer, counts in enumerate(counts_of(rows, lane)):
                    if sum(counts):
                        uneven = Fraction(max(counts) * lane.experts, sum(counts))
                        sums[layer].append(math.floor(uneven * 2**20))
    return found


def step_windows(
    accepted: Sequence[Accepted], size: int, stride: int
) -> dict[tuple[Lane, int, int], list[Accepted]]:
    """Rows of each step window by (lane, phase, first step)."""
    found: dict[tuple[Lane, int, int], list[Accepted]] = defaultdict(list)
    for one in accepted:
        step = one.row.step
        if step is None or one.row.phase not in (EVAL, TRAIN):
            continue
        for start in range(step // stride * stride, step - size, -stride):
            found[one.lane, one.row.phase, start].append(one)
    return found


TASK_END_US = 62 * SECOND
TASK_SILENCE_US = 600 * SECOND
TASK_MINUTES = 60


def task_windows(
    accepted: Sequence[Accepted], task_ends: Sequence[tuple[Lane, str, int, int | None]]
) -> list[tuple[Lane, int, str, int, list[Accepted], str]]:
    """(lane, phase, task, start, rows, close reason) of each task window at the seal.

    The global watermark is taken to follow the rows closely: a task window is over when the
    next row of the task comes after its closing time.
    """
    by_task: dict[tuple[Lane, int, str], list[Accepted]] = defaultdict(list)
    for one in accepted:
        by_task[one.lane, one.row.phase, one.row.task].append(one)
    found = []
    for (lane, phase, task), rows in by_task.items():
        if rows[0].row.time is None:
            found.append((lane, phase, task, 0, rows, "sealed"))
            continue
        ends = [time for *key, time in task_ends if key == [lane, task, phase]]
        current: list[Accepted] = []
        for one in sorted(rows, key=_time):
            if current:
                reason = _task_is_over(current, _time(one), ends)
                if reason:
                    found.append((lane, phase, task, _time(current[0]), current, reason))
                    current = []
            current.append(one)
        reason = _task_is_over(current, END_OF_TIME, ends)
        found.append((lane, phase, task, _time(current[0]), current, reason))
    return found


def _task_is_over(rows: list[Accepted], now: int, ends: Sequence[int | None]) -> str:
    first, last = _time(rows[0]), _time(rows[-1])
    ended = any(end is not None and first <= end <= last for end in ends)
    if now >= last + (TASK_END_US if ended else TASK_SILENCE_US):
        return "task_end" if ended else "silence"
    if now // MINUTE - first // MINUTE >= TASK_MINUTES:
        return "roll_over"
    return ""


def _time(one: Accepted) -> int:
    assert one.row.time is not None
    return one.row.time


PERIOD = 300 * SECOND


def trailing_references(
    accepted: Sequence[Accepted], last_period: int
) -> dict[tuple[Lane, int, int], list[list[int]]]:
    """The reference in force during each period, by (lane, phase, period)."""
    by_period: dict[tuple[Lane, int], dict[int, list[Accepted]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for one in accepted:
        if one.row.time is not None:
            by_period[one.lane, one.row.phase][one.row.time // PERIOD].append(one)
    found = {}
    for (lane, phase), periods in by_period.items():
        acc = [[0] * lane.experts for _ in range(lane.layers)]
        for period in range(min(periods) + 2, last_period + 1):
            slot = counts_of(periods.get(period - 2, []), lane)
            acc = [
                [value - value // 8 + new for value, new in zip(*layer, strict=True)]
                for layer in zip(acc, slot, strict=True)
            ]
            found[lane, phase, period] = acc
    return found
