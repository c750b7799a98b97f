"""What an engine hands out for some records, in a form that can be compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.metrics import DROPS_UNKNOWN
from moescope.processors.engine import Engine, add_histograms
from moescope.processors.finish import WindowFinisher

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from moescope.core.emission import Emission, LaneKey, SharedDelta
    from moescope.core.router_sums import PassSums
    from moescope.processors.config import WindowConfig
    from moescope.processors.sources.protocol import SourceRecord

SECOND = 1_000_000
PARTITION = "p0"

Key = tuple[Any, ...]
Value = tuple[Any, ...]


@dataclass
class Sums:
    """Sums of the deltas of one pane."""

    counts: Any = 0
    seen: int = 0
    requests: Any = 0
    first: int = 2**63 - 1
    last: int = NO_TIME
    ended: bool = False
    router: Any = 0

    def add(self, delta: SharedDelta) -> None:
        """Add one delta."""
        self.counts = self.counts + delta.counts.astype(np.int64)
        self.seen += delta.seen
        self.requests = self.requests + delta.request_gaps
        self.first = min(self.first, delta.first_time_us)
        self.last = max(self.last, delta.last_time_us)
        self.ended |= delta.last_of_task
        if delta.router is not None:
            self.router = self.router + delta.router
        # Streams do not tell drops; a piece without rows only says that its task is over.
        assert (delta.dropped == (DROPS_UNKNOWN if delta.seen else 0)).all()

    def value(self) -> Value:
        """Plain sums: counts, seen, requests, first, last, ended, router sums."""
        return (
            nested(self.counts),
            self.seen,
            tuple(self.requests.tolist()),
            self.first,
            self.last,
            self.ended,
            () if isinstance(self.router, int) else nested(self.router),
        )


@dataclass
class Outcome:
    """Everything that commits handed out.

    Attributes:
        token: Token windows as tuples: `TOKEN_FIELDS`.
        values: Metric values (bytes) by the same tuples.
        panes: Sums per (kind, lane, phase, scope kind, scope value, task, pane).
        positions, lags, similarity: Sums of time panes per (lane, phase, start).
        passes: Per (kind, lane, phase, scope kind, scope value, start).
        histograms: int64 [M, L, slots] by key, as bytes; references: counts by id.
        accounts, dead_letters: By offset.
        letter_counts: Records, kept and bytes per reason, by (what, reason).
    """

    token: Counter[Value] = field(default_factory=Counter)
    values: Counter[tuple[Value, bytes]] = field(default_factory=Counter)
    panes: dict[Key, Value] = field(default_factory=dict)
    positions: dict[Key, Value] = field(default_factory=dict)
    lags: dict[Key, Value] = field(default_factory=dict)
    similarity: dict[Key, Value] = field(default_factory=dict)
    passes: dict[Key, Value] = field(default_factory=dict)
    histograms: dict[Any, bytes] = field(default_factory=dict)
    references: dict[str, Value] = field(default_factory=dict)
    accounts: dict[int, Any] = field(default_factory=dict)
    dead_letters: list[int] = field(default_factory=list)
    letter_counts: Counter[tuple[str, str]] = field(default_factory=Counter)


def nested(counts: Any) -> tuple[tuple[int, ...], ...]:
    """Counts [L, E] as tuples, which compare and hash."""
    return tuple(tuple(int(value) for value in row) for row in counts)


def lane_name(key: LaneKey) -> str:
    """Lanes of a stream differ by revision alone."""
    return key.revision


def outcome_of(emissions: Sequence[Emission]) -> Outcome:
    """Add emissions up."""
    out = Outcome()
    histograms: dict[Any, Any] = {}
    panes: dict[Key, Sums] = defaultdict(Sums)
    profiles: dict[Key, list[SharedDelta]] = defaultdict(list)
    passes: dict[Key, list[PassSums]] = defaultdict(list)
    for emission in emissions:
        add_histograms(histograms, emission.histograms)
        _collect_passes(passes, emission)
        for finished in emission.windows:
            group = finished.group
            assert (group.dropped == DROPS_UNKNOWN).all()
            for w in range(len(group)):
                row = (
                    lane_name(group.lane),
                    group.phase,
                    group.size,
                    group.stride,
                    int(group.start[w]),
                    group.request[w],
                    group.task[w],
                    group.node[w],
                    int(group.seen[w]),
                    int(group.expected[w]),
                    bool(group.complete[w]),
                    str(group.close_reason[w]),
                    int(group.first_time_us[w]),
                    int(group.last_time_us[w]),
                    int(group.close_time_us[w]),
                    float(group.weight[w]),
                    nested(group.counts[w]),
                    group.trailing_id.rpartition("/")[2],
                    () if group.router is None else nested(group.router[w]),
                    tuple(group.scene_tokens[w].items()),
                )
                out.token[row] += 1
                out.values[row, finished.values[w].tobytes()] += 1
        for delta in emission.deltas:
            key = (
                str(delta.kind), lane_name(delta.lane), delta.phase, str(delta.scope_kind),
                delta.scope_value, delta.task, delta.pane,
            )  # fmt: skip
            has_profile = delta.positions or delta.lags or delta.similarity
            if has_profile:
                assert key[0] == "time"
                assert key[3] == "all"
                profiles[key[1], key[2], key[-1]].append(delta)
            # Similarity panes, and passes that end later, come in deltas without rows.
            if delta.seen or not (delta.similarity or delta.passes):
                panes[key].add(delta)
        for reference in emission.references:
            out.references[reference.reference_id] = (
                reference.effective_from_us,
                nested(reference.counts),
            )
        for account in emission.batches:
            assert account.offset not in out.accounts
            out.accounts[account.offset] = account
        out.dead_letters += [letter.offset for letter in emission.dead_letters]
        _add_letter_counts(out, emission)
    out.histograms = {key: value.tobytes() for key, value in histograms.items() if value.any()}
    for pane, deltas in profiles.items():
        _add_profiles(out, pane, deltas)
    out.passes = {key: _passes_value(parts) for key, parts in passes.items()}
    out.panes = {key: sums.value() for key, sums in panes.items()}
    return out


def _collect_passes(passes: dict[Key, list[PassSums]], emission: Emission) -> None:
    for delta in emission.deltas:
        if delta.passes is not None:
            assert not delta.task
            key = (
                str(delta.kind), lane_name(delta.lane), delta.phase, str(delta.scope_kind),
                delta.scope_value, delta.pane,
            )  # fmt: skip
            passes[key].append(delta.passes)


def _passes_value(parts: Sequence[PassSums]) -> Value:
    """Per layer: passes, sum and greatest of their imbalances."""
    return tuple(
        (
            sum(int(part.passes[layer]) for part in parts),
            sum(int(part.imbalance[layer]) for part in parts),
            max(int(part.largest[layer]) for part in parts),
        )
        for layer in range(len(parts[0].passes))
    )


def _add_letter_counts(out: Outcome, emission: Emission) -> None:
    for count in emission.dead_letter_counts:
        out.letter_counts["records", count.reason] += count.records
        out.letter_counts["kept", count.reason] += count.kept
        out.letter_counts["bytes", count.reason] += count.record_bytes


def _add_profiles(out: Outcome, key: Key, deltas: Sequence[SharedDelta]) -> None:
    """Add up what one pane's deltas hold beside counts."""
    layers, experts = deltas[0].counts.shape
    positions: Counter[tuple[int, int, int]] = Counter()
    for delta in deltas:
        if delta.positions is not None:
            assert (np.diff(delta.positions.index) > 0).all()
            for index, count in zip(
                delta.positions.index.tolist(), delta.positions.count.tolist(), strict=True
            ):
                place, rest = divmod(index, layers * experts)
                positions[place, *divmod(rest, experts)] += count
    if positions:
        out.positions[key] = tuple(sorted(positions.items()))
    lags = [delta.lags for delta in deltas if delta.lags is not None]
    if lags:
        out.lags[key] = (
            nested(sum(each.overlap for each in lags)), nested(sum(each.pairs for each in lags))
        )  # fmt: skip
    for delta in deltas:
        sums = delta.similarity
        if sums is not None:
            assert delta.pane == sums.start_us + sums.size_us - SECOND
            key = (*key[:2], sums.start_us)
            assert key not in out.similarity
            out.similarity[key] = tuple(
                (tuple(total), *rest)
                for total, *rest in zip(
                    sums.weighted.tolist(), sums.squares.tolist(), sums.requests.tolist(),
                    sums.left_out.tolist(), strict=True,
                )
            )  # fmt: skip


def roll_up(
    records: Sequence[SourceRecord],
    config: WindowConfig,
    *,
    commits: Collection[int] = (),
    restarts: Collection[int] = (),
) -> Outcome:
    """Run records through a real engine.

    Args:
        records: With offsets 0, 1, …
        config: Declared windows.
        commits: Numbers of records read (again or not) before which a commit happens.
        restarts: The same for engines that are replaced by a new one, which reads again from the
            last commit's `replay_from`.
    """
    emissions: list[Emission] = []
    finisher = WindowFinisher()
    engine = Engine(config, {})
    partition = engine.partition(PARTITION, "live")
    number = 0
    while partition.next_offset < len(records):
        if number in commits:
            emissions += _taken(engine, finisher)
        if number in restarts:
            last = emissions[-1].progress if emissions else ()
            engine = Engine(config, {progress.partition: progress for progress in last})
            partition = engine.partition(PARTITION, "live")
        partition.process(records[partition.next_offset])
        engine.touch(PARTITION)
        number += 1
    partition.seal()
    emissions += _taken(engine, finisher)
    return outcome_of(emissions)


def _taken(engine: Engine, finisher: WindowFinisher) -> list[Emission]:
    unfinished = engine.take()
    return [] if unfinished is None else [unfinished.finish(finisher)]


def windows_of_panes(
    panes: dict[Key, Value], kind: str, size: int, stride: int, pane_size: int
) -> dict[Key, Value]:
    """Time or step windows: (counts, seen, requests, first, last, router) per (.., start)."""
    found: dict[Key, list[tuple[int, Value]]] = defaultdict(list)
    for (pane_kind, lane, phase, scope_kind, scope, _, pane), value in panes.items():
        if pane_kind != kind:
            continue
        for start in range(pane // stride * stride, pane - size, -stride):
            found[lane, phase, scope_kind, scope, start].append((pane, value))
    windows = {}
    for key, parts in found.items():
        requests = 0
        for pane, value in parts:
            behind = (pane - key[-1]) // pane_size
            requests += sum(value[2][min(behind, len(value[2]) - 1) :])
        counts = nested(sum(np.array(value[0]) for _, value in parts))
        first = min(value[3] for _, value in parts)
        last = max(value[4] for _, value in parts)
        router = nested(sum(np.array(value[6]) for _, value in parts))
        seen = sum(value[1] for _, value in parts)
        windows[key] = (counts, seen, requests, first, last, router)
    return windows
