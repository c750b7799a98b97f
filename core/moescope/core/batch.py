"""The routing batch: consecutive tokens of one node, columnar, validated once.

In memory as on the wire, the expert ids of a batch are *gap planes* (:class:`Routes`), since
that is the form which compresses best and which the roll-up kernels read without unpacking.
:meth:`Routes.expert_ids` gives the readable array.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core import gap_planes
from moescope.core.batch_checks import SEVERAL_RANKS, BatchError, check_batch
from moescope.core.clock import NO_TIME
from moescope.core.quantise import quantise_entropy, quantise_log
from moescope.core.vocabulary import (
    MAX_EXPERTS,
    Fidelity,
    IdSpace,
    Origin,
    Phase,
    RankOrder,
    RowFlag,
    ScoreKind,
    TokenIdKind,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIRE_VERSION = 1
STEPS_LABEL, STEPS_ENDED = "steps", "ended"
"""A label of the last batch of a training producer: what it trained is done, and none follows."""
NO_START = -1
"""In `Requests.phase_starts`: this phase has no known start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Where in the parallel layout the producer sits; −1 where it does not apply."""

    data_parallel: int = -1
    tensor_parallel: int = -1
    pipeline_parallel: int = -1
    expert_parallel: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCounters:
    """What the producer lost since its previous batch, in rows (tokens) and batches.

    `ring_rows`: overwritten in the ring before the agent read them. `log_batches` and
    `log_rows`: dropped from the batch log by its byte cap. `rejected_rows`: refused by the
    recorder (wrong shape, ids out of range). `unseen_rows`: computed by the engine where nobody
    could look (an unknown layout, a kernel that shows no ids); the label `unseen_reason` says why.
    """

    ring_rows: int = 0
    log_batches: int = 0
    log_rows: int = 0
    rejected_rows: int = 0
    unseen_rows: int = 0

    @property
    def lost_rows(self) -> int:
        """Rows that existed and will never arrive."""
        return self.ring_rows + self.log_rows + self.unseen_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which expert-parallel rank holds which expert.

    Attributes:
        version: Rises with every change; two placements of one version are the same.
        rank_of: uint16 [L, E], rank of each expert, below `ranks`, or `SEVERAL_RANKS`.
        ranks: Expert-parallel ranks, at least 1.
    """

    version: int
    rank_of: NDArray[np.uint16]
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """What holds for every token of a batch.

    Attributes:
        incarnation: Boot id of the producer, unsigned 64 bits; with `node` and `sequence` the
            identity of the batch.
        watermark_us: Nothing earlier than this follows from the node; `END_OF_TIME` when
            nothing follows at all, `NO_TIME` when the producer does not know.
        encoded_at_us: The producer's clock when it encoded the batch.
        layers: Decoder-layer indices of the MoE layers recorded, ascending, uint16 [L].
        sampling_ratio: Share of requests recorded, in (0, 1]; 1 unless fidelity is sampled.
        labels: Free key-value pairs; never used as keys of windows.
        placement: Where the experts are from this batch on; None: as said before, or unknown.
    """

    node: str
    incarnation: int
    sequence: int
    model: str
    revision: str
    experts: int
    top_k: int
    layers: NDArray[np.uint16]
    watermark_us: int = NO_TIME
    encoded_at_us: int = NO_TIME
    engine: str = ""
    engine_version: str = ""
    origin: Origin = Origin.MODEL
    id_space: IdSpace = IdSpace.LOGICAL
    expert_map_version: int = 0
    score_kind: ScoreKind = ScoreKind.UNKNOWN
    rank_order: RankOrder = RankOrder.UNKNOWN
    fidelity: Fidelity = Fidelity.FULL
    sampling_ratio: float = 1.0
    token_id_kind: TokenIdKind = TokenIdKind.OFF
    ranks: Ranks = Ranks()
    labels: dict[str, str] = field(default_factory=dict)
    drops: DropCounters = DropCounters()
    placement: Placement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The requests that a batch's tokens belong to (R rows).

    Attributes:
        ids, tasks, scenes: Names, one per request. Two rows may share an id when its task or
            scene changed.
        phase_starts: int32 [R, 6]; first position of each phase (index = `Phase`), `NO_START`
            where unknown. Prefill starts at 0; decode at the prompt's length.
        cached_tokens: int32 [R]; positions below this came from a prefix cache.
    """

    ids: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    scenes: tuple[str, ...] = ()
    phase_starts: NDArray[np.int32] = field(
        default_factory=lambda: np.empty((0, len(Phase)), np.int32)
    )
    cached_tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    def __len__(self) -> int:
        """Number of requests R."""
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One row per token, in the order of recording within a request (T rows).

    Attributes:
        request: int32 [T], index into `Requests`.
        position: int32 [T], position in the request, from 0.
        phase: uint8 [T], `Phase` values.
        flags: uint8 [T], `RowFlag` bits.
        event_time_us: int64 [T] or None when the source has no times.
        pass_id, step: int64 [T] or None.
        token_id, content_key: uint64 [T] or None.
        block: int32 [T] or None; semantic block of the request.
    """

    request: NDArray[np.int32]
    position: NDArray[np.int32]
    phase: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    event_time_us: NDArray[np.int64] | None = None
    pass_id: NDArray[np.int64] | None = None
    step: NDArray[np.int64] | None = None
    token_id: NDArray[np.uint64] | None = None
    content_key: NDArray[np.uint64] | None = None
    block: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        """Number of tokens T."""
        return len(self.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """A quantised float plane: codes and how to read them.

    Attributes:
        codes: uint8 or uint16 array; the formula per kind and bits is in the wire-format page.
        bits: 4, 8 or 16 bits per code on the wire.
    """

    codes: NDArray[np.uint8] | NDArray[np.uint16]
    bits: int


@dataclass(frozen=True, kw_only=True)
class Routes:
    """Expert ids of L layers × T tokens, with what else the router told.

    Attributes:
        gaps: uint8 or uint16 [k, L, T]. Within a (layer, token), the popularity ranks of its k
            experts are sorted ascending; plane 0 holds the first rank, plane j the difference
            to the rank before. A zero difference (j ≥ 1) is a duplicate id: suspicious, kept.
        relabelling: uint16 [L, E]; `relabelling[l, r]` is the expert with popularity rank r.
            A rank ≥ E stands for the (invalid) expert id of the same number.
        top1: uint8 [L, T] or None. The index, among the row's ids in *ascending rank order*,
            of the expert with the highest selection score (or weight). None when rank order
            is unknown.
        weights: codes [k, L, T] in the same order as the ranks, or None.
        entropy: codes [L, T] or None; score entropy.
        margin: codes [L, T] or None; gap of the selection score at the k-th place.
        dropped: bool [k, L, T] or None; assignments dropped by expert capacity.
    """

    gaps: NDArray[np.uint8] | NDArray[np.uint16]
    relabelling: NDArray[np.uint16]
    top1: NDArray[np.uint8] | None = None
    weights: Quantised | None = None
    entropy: Quantised | None = None
    margin: Quantised | None = None
    dropped: NDArray[np.bool_] | None = None

    @classmethod
    def from_ids(
        cls,
        expert_ids: NDArray[np.integer[Any]],
        experts: int,
        *,
        ranked: bool = False,
        dropped: NDArray[np.bool_] | None = None,
        weights: NDArray[np.floating[Any]] | None = None,
        weight_bits: int = 8,
        entropy: NDArray[np.floating[Any]] | None = None,
        margin: NDArray[np.floating[Any]] | None = None,
    ) -> Routes:
        """Build gap planes from readable ids.

        Args:
            expert_ids: [T, L, k], ids as the router gave them.
            experts: E.
            ranked: Whether column 0 is the top-1 by selection score or weight.
            dropped: bool [T, L, k], in the order of `expert_ids`.
            weights: [T, L, k], in the order of `expert_ids`.
            weight_bits: 4, 8 or 16.
            entropy: [T, L], nats.
            margin: [T, L].

        Raises:
            BatchError: Shapes disagree or an id is negative or over `MAX_EXPERTS`.
        """
        largest_id = _check_ids(expert_ids, experts)
        _check_companions(expert_ids.shape, weights=weights, dropped=dropped)
        _check_companions(expert_ids.shape[:2], entropy=entropy, margin=margin)
        relabelling = gap_planes.popularity_relabelling(expert_ids, experts, largest_id)
        planes = gap_planes.rank_planes(expert_ids, relabelling, largest_id)
        first = planes[0].copy() if ranked else None
        order = None if weights is None and dropped is None else gap_planes.row_order(planes)
        gaps = gap_planes.sorted_gaps(planes)
        return cls(
            gaps=gaps,
            relabelling=relabelling,
            top1=None if first is None else gap_planes.index_of_rank(gaps, first),
            weights=None
            if weights is None
            else Quantised(
                codes=_reordered(quantise_log(weights, weight_bits), order), bits=weight_bits
            ),
            entropy=None
            if entropy is None
            else Quantised(codes=_transposed(quantise_entropy(entropy, 8, experts)), bits=8),
            margin=None
            if margin is None
            else Quantised(codes=_transposed(quantise_log(margin, 8)), bits=8),
            dropped=None if dropped is None else _reordered(dropped, order),
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, L, k)."""
        k, layers, tokens = self.gaps.shape
        return tokens, layers, k

    @cached_property
    def expert_ids(self) -> NDArray[np.uint16]:
        """Ids, uint16 [T, L, k], each row in ascending popularity-rank order."""
        return gap_planes.ids_from_gaps(self.gaps, self.relabelling)

    @cached_property
    def largest_rank(self) -> int:
        """The largest popularity rank; below E when every id is valid."""
        return gap_planes.largest_rank(self.gaps)


def _check_ids(expert_ids: NDArray[np.integer[Any]], experts: int) -> int:
    """Check readable ids and return the largest."""
    if expert_ids.ndim != len(("tokens", "layers", "k")) or 0 in expert_ids.shape:
        raise BatchError(f"Expert ids have shape {expert_ids.shape}, not [T, L, k] of at least 1")
    if not np.issubdtype(expert_ids.dtype, np.integer):
        raise BatchError(f"Expert ids are {expert_ids.dtype}, not integers")
    if not 1 <= experts <= MAX_EXPERTS:
        raise BatchError(f"{experts} experts, not 1 to {MAX_EXPERTS}")
    smallest, largest = int(expert_ids.min()), int(expert_ids.max())
    if smallest < 0 or largest > MAX_EXPERTS:
        raise BatchError(f"Expert ids go from {smallest} to {largest}, not 0 to {MAX_EXPERTS}")
    return largest


def _check_companions(shape: tuple[int, ...], **columns: NDArray[Any] | None) -> None:
    for name, column in columns.items():
        if column is not None and column.shape != shape:
            raise BatchError(f"{name} has shape {column.shape}, not {shape}")


def _transposed(codes: NDArray[Any]) -> NDArray[Any]:
    """Bring [T, L] into [L, T]."""
    return np.ascontiguousarray(codes.T)


def _reordered(values: NDArray[Any], order: NDArray[np.uint8] | None) -> NDArray[Any]:
    """Bring [T, L, k] into planes [k, L, T], each row in its sorted order."""
    planes = np.ascontiguousarray(values.transpose(2, 1, 0))
    return planes if order is None else np.take_along_axis(planes, order, axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBlocks:
    """Counts fidelity: pieces of 128-token blocks of requests (B rows).

    A block is 128 consecutive positions counted from the phase's anchor
    (`max(phase start, cached tokens)`); a piece never crosses a block's border, and pieces of
    one block add up.

    Attributes:
        request: int32 [B]. phase: uint8 [B]. flags: uint8 [B] (`RowFlag`).
        start_position: int32 [B]; tokens: int32 [B], consecutive from there.
        first_time_us, last_time_us: int64 [B] or None.
        step: int64 [B] or None.
        counts: uint32 [B, L, E]; dropped: uint32 [B, L] or None.
    """

    request: NDArray[np.int32]
    phase: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    start_position: NDArray[np.int32]
    tokens: NDArray[np.int32]
    counts: NDArray[np.uint32]
    first_time_us: NDArray[np.int64] | None = None
    last_time_us: NDArray[np.int64] | None = None
    step: NDArray[np.int64] | None = None
    dropped: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        """Number of pieces B."""
        return len(self.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBlocks:
    """Counts fidelity: per second, phase and scene over all requests of the node (B rows).

    Attributes:
        second_us: int64 [B], start of the second. phase: uint8 [B].
        scene: uint16 [B], index into `scenes`.
        scenes: scene names.
        tokens: int64 [B].
        requests: int32 [B], distinct requests in this piece.
        counts: uint32 [B, L, E]; dropped: uint32 [B, L] or None.
    """

    second_us: NDArray[np.int64]
    phase: NDArray[np.uint8]
    scene: NDArray[np.uint16]
    scenes: tuple[str, ...]
    tokens: NDArray[np.int64]
    requests: NDArray[np.int32]
    counts: NDArray[np.uint32]
    dropped: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        """Number of pieces B."""
        return len(self.second_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingBatch:
    """One routing batch. `full` and `sampled` fidelity have tokens and routes; `counts` blocks.

    A heartbeat is a batch without tokens and without blocks.

    Raises:
        BatchError: From construction, when columns contradict each other.
    """

    header: BatchHeader
    requests: Requests = field(default_factory=Requests)
    tokens: Tokens | None = None
    routes: Routes | None = None
    token_blocks: TokenBlocks | None = None
    time_blocks: TimeBlocks | None = None

    def __post_init__(self) -> None:
        """Validate once; everything downstream relies on it."""
        check_batch(self)

    @property
    def is_heartbeat(self) -> bool:
        """Whether the batch only carries time and drop counters."""
        return self.tokens is None and self.token_blocks is None and self.time_blocks is None


__all__ = [
    "NO_START",
    "SEVERAL_RANKS",
    "WIRE_VERSION",
    "BatchError",
    "BatchHeader",
    "DropCounters",
    "Placement",
    "Quantised",
    "Ranks",
    "Requests",
    "Routes",
    "RoutingBatch",
    "RowFlag",
    "TimeBlocks",
    "TokenBlocks",
    "Tokens",
]
