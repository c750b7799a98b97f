"""What a processor hands to the store owner: one emission per commit, one transaction.

Everything in here is a plain value (numpy arrays, strings, integers), so that an emission can
be applied in process or travel through a topic.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from moescope.core.vocabulary import WindowKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from moescope.core.accounts import (
        BatchAccount,
        DeadLetter,
        DeadLetterCount,
        NodeStatus,
        PartitionProgress,
    )
    from moescope.core.batch import Placement
    from moescope.core.exceedance import Exceedances
    from moescope.core.router_sums import LagSums, PassSums, PositionCounts, SimilaritySums
    from moescope.core.vocabulary import CloseReason, ScopeKind

LIVE_DOMAIN = "live"
"""Watermark domain of everything that is not an import."""

ONE_BAND = ""
"""Volume band of token windows: they all hold the same number of tokens of one request."""


@dataclass(frozen=True)
class LaneKey:
    """What is constant over a set of comparable windows; hashable, and hashed often."""

    domain: str
    model: str
    revision: str
    origin: str
    fidelity: str
    sampling_ratio: float
    experts: int
    top_k: int
    layers: tuple[int, ...]

    def __hash__(self) -> int:
        """Hash of the fields, worked out once: every histogram and series key holds a lane."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.domain, self.model, self.revision, self.origin, self.layers))

    def __reduce__(self) -> tuple[type[LaneKey], tuple[object, ...]]:
        """Leave the hash behind: hashes of text differ between processes."""
        return LaneKey, tuple(getattr(self, each.name) for each in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowGroup:
    """W closed windows of one lane, phase, kind, size, stride and scope, before finishing.

    Attributes:
        start: int64 [W]; a position, µs since the epoch, or a step, as the kind says.
        first_time_us, last_time_us: int64 [W] event time of the first and last accepted row;
            `NO_TIME` when absent.
        close_time_us: int64 [W], logical close time; `NO_TIME` when absent.
        request, task, scene, node: [W] names; empty strings where they do not apply.
        seen: int64 [W] accepted rows. expected: int64 [W].
        lost: int64 [W] rows known to be lost. unknown_gap: bool [W], a gap of unknown length.
        requests: int64 [W].
        close_reason: [W].
        complete: bool [W].
        weight: float64 [W]; 0 means "histogram only, do not store the row".
        row_version: int32 [W], 1 at first closing.
        counts: uint32 or uint64 [W, L, E]. dropped: uint64 [W, L].
        trailing: int64 [L, E] counts of the trailing reference, or None; one per group, so a
            group never mixes references. trailing_id: its id, or "".
        scene_tokens: [W] accepted rows per scene; empty: unknown.
        router: int64 [W, L, ROUTER_SUMS]; None: nothing is known beside the counts.
        positions: [W], per window counts at sampled positions, or None; only time windows of
            scope `all` have them, like the next two.
        similarity: [W], per window the similarity panes that lie inside of it.
        lags: [W], per window the lag overlap of sampled requests, or None.
        passes: [W], per window its passes, or None; only time and step windows have them.
        placement: Where the experts were at the end of each window; one per group, as with the
            trailing reference. placement_id: its id, or "".
    """

    lane: LaneKey
    phase: str
    kind: WindowKind
    size: int
    stride: int
    scope_kind: ScopeKind
    scope_value: str
    start: NDArray[np.int64]
    first_time_us: NDArray[np.int64]
    last_time_us: NDArray[np.int64]
    close_time_us: NDArray[np.int64]
    request: Sequence[str]
    task: Sequence[str]
    scene: Sequence[str]
    node: Sequence[str]
    seen: NDArray[np.int64]
    expected: NDArray[np.int64]
    lost: NDArray[np.int64]
    unknown_gap: NDArray[np.bool_]
    requests: NDArray[np.int64]
    close_reason: Sequence[CloseReason]
    complete: NDArray[np.bool_]
    weight: NDArray[np.float64]
    row_version: NDArray[np.int32]
    counts: NDArray[np.uint32] | NDArray[np.uint64]
    dropped: NDArray[np.uint64]
    trailing: NDArray[np.int64] | None = None
    trailing_id: str = ""
    scene_tokens: Sequence[Mapping[str, int]] = ()
    router: NDArray[np.int64] | None = None
    positions: Sequence[PositionCounts | None] = ()
    similarity: Sequence[Sequence[SimilaritySums]] = ()
    lags: Sequence[LagSums | None] = ()
    passes: Sequence[PassSums | None] = ()
    placement: Placement | None = None
    placement_id: str = ""

    def __len__(self) -> int:
        """Number of windows W."""
        return len(self.start)

    @property
    def coverage(self) -> NDArray[np.float64]:
        """Share seen of what should have been, [W]; NaN: a gap of unknown length hides it."""
        return np.where(self.unknown_gap, np.nan, self.seen / np.maximum(self.expected, 1))

    def is_covered(self, minimum: float) -> NDArray[np.bool_]:
        """Which windows saw enough to say something, [W].

        Token windows: all of their positions, since values depend on how many there are. Others: a
        known share of at least `minimum`.
        """
        if self.kind is WindowKind.TOKEN:
            return self.complete
        return np.asarray(self.coverage >= minimum)

    @property
    def bands(self) -> list[str]:
        """Volume band of each window: `requests:tokens` as powers of two; token windows: one."""
        if self.kind is WindowKind.TOKEN:
            return [ONE_BAND] * len(self)
        return [
            f"{max(requests, 1).bit_length() - 1}:{max(seen, 1).bit_length() - 1}"
            for requests, seen in zip(self.requests.tolist(), self.seen.tolist(), strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the thresholds in force say of a group's windows.

    Attributes:
        version: [W] threshold version of each window; "" where none was in force.
        judged: uint64 [W, L], bit i set: a line of `JUDGED_METRICS[i]` was there and the value
            was not null.
        warn, red: uint64 [W, L], bits of metrics past their line; red ones are warn ones too.
        exceedances: Increments of the paging statistics: windows that saw enough, at their first
            closing only.
    """

    version: Sequence[str]
    judged: NDArray[np.uint64]
    warn: NDArray[np.uint64]
    red: NDArray[np.uint64]
    exceedances: Exceedances


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedWindows:
    """A group with its metric values.

    Attributes:
        values: float64 [W, L, M] in the order of `moescope.core.metrics` columns; NaN = null.
        tokens: int64 [W, L] = counts summed over experts / k.
        lag_overlap: float64 [W, L, LAGS], mean overlap per lag / k; None: no window has it.
        judgement: None where no thresholds are in force for any of the windows.
    """

    group: WindowGroup
    values: NDArray[np.float64]
    tokens: NDArray[np.int64]
    lag_overlap: NDArray[np.float64] | None = None
    judgement: Judgement | None = None


@dataclass(frozen=True, slots=True)
class HistogramKey:
    """Where a histogram increment belongs; one BLOB per key over all layers."""

    lane: LaneKey
    phase: str
    minute_us: int
    kind: WindowKind
    size: int
    stride: int
    scope_kind: ScopeKind
    scope_value: str
    band: str


Histograms = dict[HistogramKey, "NDArray[np.int64]"]
"""Increments int64 [M, L, BINS]; corrections may be negative. Addition commutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDelta:
    """Additive part of a shared window: a time pane, a task's minute, or a step pane.

    Attributes:
        pane: time: start of the 1 s pane (µs); task: start of the minute (µs), 0 without
            times; step: first step of the pane.
        counts: uint32 or uint64 [L, E]; dropped: uint64 [L].
        seen: accepted rows; lost; unknown_gap as in `WindowGroup`.
        request_gaps: int64 [G]; how many (request, phase) had their first row of this pane
            exactly g + 1 seconds (time), minutes (task) or steps (step) after their previous
            pane (last entry: that or more, or never before). The number of distinct requests in a
            window that starts at a is Σ over its panes p of the entries with index
            ≥ min(p − a, G − 1), so that it adds up over commits.
        requests: requests first seen, where there are no `request_gaps`.
        scene_tokens: accepted rows per scene.
        last_of_task: a row said that the task is over.
        router: int64 [L, ROUTER_SUMS], or None.
        positions: counts at sampled positions, or None; time panes of scope `all` only.
        similarity: a similarity pane that the partition closed, or None; its delta has no rows
            and names the *last* second of that pane, so that it never arrives late.
        lags: lag overlap of sampled requests, or None; time panes of scope `all` only.
        passes: the pane's passes, or None; time panes of scope `all` and `node`, and step panes.
    """

    lane: LaneKey
    phase: str
    kind: WindowKind
    scope_kind: ScopeKind
    scope_value: str
    pane: int
    counts: NDArray[np.uint32] | NDArray[np.uint64]
    dropped: NDArray[np.uint64]
    seen: int
    task: str = ""
    lost: int = 0
    unknown_gap: bool = False
    first_time_us: int
    last_time_us: int
    request_gaps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    requests: int = 0
    scene_tokens: Mapping[str, int] = field(default_factory=dict)
    last_of_task: bool = False
    router: NDArray[np.int64] | None = None
    positions: PositionCounts | None = None
    similarity: SimilaritySums | None = None
    lags: LagSums | None = None
    passes: PassSums | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailingReference:
    """A trailing reference that came into force: counts int64 [L, E]."""

    reference_id: str
    lane: LaneKey
    phase: str
    partition: str
    effective_from_us: int
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementNotice:
    """A node said where the experts are.

    Attributes:
        lane: Of the batch that said so. It holds for every lane with the same domain, model,
            revision, experts and layers.
        node: Who said so.
        effective_from_us: Event time from which it holds: of the batch's first row, else its
            watermark; `NO_TIME` without either, for what has no times.
        placement: rank_of is [L, E] of the lane.
    """

    lane: LaneKey
    node: str
    effective_from_us: int
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """One commit of a processor.

    Attributes:
        dead_letter_counts: Increments; they count also what is not kept.
        unread: Partitions that hold records which no progress covers yet: they are late because
            nobody read them, not because they are silent, and are waited for.
        read_to: Topic partition → next offset, of topics whose place is stored with the output
            and that are not partitions of routing batches.
        handled_to: The same topics' partitions → up to where all that ended there is stored, also
            behind `read_to`, where something begins that has not ended; what is left out here is
            handled up to `read_to`.
        claim: What the transport needs to prove that it may still commit this; never stored.
    """

    progress: tuple[PartitionProgress, ...]
    windows: tuple[FinishedWindows, ...] = ()
    histograms: Histograms = field(default_factory=dict)
    deltas: tuple[SharedDelta, ...] = ()
    batches: tuple[BatchAccount, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    references: tuple[TrailingReference, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()
    dead_letter_counts: tuple[DeadLetterCount, ...] = ()
    placements: tuple[PlacementNotice, ...] = ()
    unread: frozenset[str] = frozenset()
    read_to: Mapping[str, int] = field(default_factory=dict)
    handled_to: Mapping[str, int] = field(default_factory=dict)
    claim: object = field(default=None, compare=False)

    @property
    def exceedances(self) -> Iterator[Exceedances]:
        """Those of its token windows, group by group."""
        return (each.judgement.exceedances for each in self.windows if each.judgement is not None)


class Finisher(Protocol):
    """Finishing of closed windows, handed to the store by whoever wires the parts together."""

    def __call__(self, group: WindowGroup) -> tuple[FinishedWindows, Histograms]:
        """Metric values of each window, and the histogram increments of the complete ones."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """What a commit hook is told.

    Attributes:
        commit_id: Number of the transaction.
        reached_us: Domain → event time up to which its shared windows have closed; whatever
            closes at or before that time is in this commit or an earlier one.
        exceedances: Increments of this commit, merged.
        lanes: Every lane that the store knows, by id.
    """

    commit_id: int
    reached_us: Mapping[str, int]
    exceedances: Exceedances
    lanes: Mapping[str, LaneKey]


class CommitHook(Protocol):
    """Work that belongs into the owner's transaction: red lines."""

    def reset(self) -> None:
        """Forget what is in memory: it may disagree with the file."""
        ...

    def committing(self, connection: Any, facts: CommitFacts) -> None:  # noqa: ANN401 - DuckDB is not imported here
        """Inside the transaction, after everything else; what it writes commits with the rest.

        Args:
            connection: A DuckDB connection (its type is not known here).
            facts: What this commit brings.
        """
        ...

    def committed(self, facts: CommitFacts) -> None:
        """After the commit succeeded; must return at once."""
        ...


class EmissionStore(Protocol):
    """What a processor needs from a store."""

    def load_progress(self) -> dict[str, PartitionProgress]:
        """Progress of every partition as of the last commit."""
        ...

    def apply(self, emission: Emission) -> None:
        """Write an emission and everything that follows from it in one transaction."""
        ...
