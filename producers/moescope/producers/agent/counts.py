"""Counts fidelity: rows become counts per 128-token block and per second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from moescope.core.batch import NO_START, Requests, TimeBlocks, TokenBlocks
from moescope.core.vocabulary import UNCOUNTED_FLAGS, RowFlag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.producers.agent.grouping import GroupedRows

BLOCK_TOKENS: Final = 128
COUNTS_CONTEXT: Final = ("position", "phase", "flags", "event_time_us")
"""Columns of a request's last row that its end needs."""

_COUNTED: Final = frozenset({"expert_ids", "dropped"})
_SECOND_US: Final = 1_000_000
_CONTEXT: Final = np.uint8(RowFlag.CONTEXT)


def count_blocks(
    grouped: GroupedRows, requests: Requests, layers: int, experts: int
) -> tuple[TokenBlocks | None, TimeBlocks | None]:
    """Count rows that hold no context rows.

    The end of a request without a row in the batch is a piece of no tokens behind its last one.

    Args:
        grouped: Rows ordered by request, and ends.
        requests: Their request table.
        layers: L.
        experts: E.
    """
    token_blocks = _token_blocks(grouped, requests, experts)
    ends = grouped.told_ends
    if ends is not None and len(ends[0]):
        pieces = _end_pieces(*ends, layers, experts, token_blocks)
        token_blocks = pieces if token_blocks is None else _joined(token_blocks, pieces)
    return token_blocks, _time_blocks(grouped, experts)


def _token_blocks(grouped: GroupedRows, requests: Requests, experts: int) -> TokenBlocks | None:
    request, columns = grouped.request, grouped.columns
    if not len(request):
        return None
    position = columns["position"].astype(np.int64)
    phase = columns["phase"]
    starts = requests.phase_starts[request, phase]
    anchor = np.maximum(np.where(starts == NO_START, 0, starts), requests.cached_tokens[request])
    kind = columns["flags"] & np.uint8(UNCOUNTED_FLAGS)
    step = columns.get("step")
    changes = (
        request[1:] != request[:-1],
        position[1:] != position[:-1] + 1,
        phase[1:] != phase[:-1],
        kind[1:] != kind[:-1],
        np.diff((position - anchor) // BLOCK_TOKENS) != 0,
        *([] if step is None else [step[1:] != step[:-1]]),
    )
    first = np.append(0, np.flatnonzero(np.logical_or.reduce(changes)) + 1)
    tokens = np.diff(first, append=len(request))
    times = columns["event_time_us"]
    return TokenBlocks(
        request=request[first],
        phase=phase[first],
        flags=np.bitwise_or.reduceat(columns["flags"], first),
        start_position=columns["position"][first],
        tokens=tokens.astype(np.int32),
        first_time_us=np.minimum.reduceat(times, first),
        last_time_us=np.maximum.reduceat(times, first),
        step=None if step is None else step[first],
        counts=_counts(
            columns["expert_ids"], np.repeat(np.arange(len(first)), tokens), len(first), experts
        ),
        dropped=_dropped(columns, np.repeat(np.arange(len(first)), tokens), len(first)),
    )


def _end_pieces(
    request: NDArray[np.int32],
    last_rows: dict[str, NDArray[Any]],
    layers: int,
    experts: int,
    others: TokenBlocks | None,
) -> TokenBlocks:
    count = len(request)
    times = last_rows["event_time_us"]
    return TokenBlocks(
        request=request,
        phase=last_rows["phase"],
        flags=last_rows["flags"] | _CONTEXT,
        start_position=last_rows["position"] + np.int32(1),
        tokens=np.zeros(count, np.int32),
        first_time_us=times,
        last_time_us=times,
        step=None if others is None or others.step is None else np.full(count, -1, np.int64),
        counts=np.zeros((count, layers, experts), np.uint32),
        dropped=(
            None if others is None or others.dropped is None
            else np.zeros((count, layers), np.uint32)
        ),
    )  # fmt: skip


def _joined(blocks: TokenBlocks, more: TokenBlocks) -> TokenBlocks:
    def both(name: str) -> Any:  # noqa: ANN401 - each column has its own type
        column = getattr(blocks, name)
        return None if column is None else np.concatenate([column, getattr(more, name)])

    return TokenBlocks(**{name: both(name) for name in TokenBlocks.__dataclass_fields__})


def _time_blocks(grouped: GroupedRows, experts: int) -> TimeBlocks | None:
    columns = grouped.columns
    if not len(grouped.request):
        return None
    rows = np.flatnonzero((columns["flags"] & np.uint8(UNCOUNTED_FLAGS)) == 0)
    if not len(rows):
        return None
    names = sorted({facts.scene for facts in grouped.facts})
    scene_of = np.array([names.index(facts.scene) for facts in grouped.facts], np.int64)
    request = grouped.request[rows]
    keys = np.stack(
        [columns["event_time_us"][rows] // _SECOND_US, columns["phase"][rows], scene_of[request]]
    )
    unique, piece = np.unique(keys, axis=1, return_inverse=True)
    count = unique.shape[1]
    piece = piece.reshape(-1)
    pairs = np.unique(piece * len(grouped.facts) + request)
    chosen = {name: column[rows] for name, column in columns.items() if name in _COUNTED}
    return TimeBlocks(
        second_us=unique[0] * _SECOND_US,
        phase=unique[1].astype(np.uint8),
        scene=unique[2].astype(np.uint16),
        scenes=tuple(names),
        tokens=np.bincount(piece, minlength=count).astype(np.int64),
        requests=np.bincount(pairs // len(grouped.facts), minlength=count).astype(np.int32),
        counts=_counts(chosen["expert_ids"], piece, count, experts),
        dropped=_dropped(chosen, piece, count),
    )


def _counts(
    expert_ids: NDArray[Any], piece: NDArray[np.int64], pieces: int, experts: int
) -> NDArray[np.uint32]:
    """How often each expert occurs per piece and layer: uint32 [pieces, L, E]."""
    layers = expert_ids.shape[1]
    cell = (piece[:, None] * layers + np.arange(layers))[:, :, None] * experts + expert_ids
    counted = np.bincount(cell.ravel(), minlength=pieces * layers * experts)
    return counted.astype(np.uint32).reshape(pieces, layers, experts)


def _dropped(
    columns: dict[str, NDArray[Any]], piece: NDArray[np.int64], pieces: int
) -> NDArray[np.uint32] | None:
    dropped = columns.get("dropped")
    if dropped is None:
        return None
    total = np.zeros((pieces, dropped.shape[1]), np.uint32)
    np.add.at(total, piece, dropped.sum(axis=2, dtype=np.uint32))
    return total
