"""Rows of a file, ready to be cut into batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch import NO_START
from moescope.core.vocabulary import IdSpace, Phase, RankOrder

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRequests:
    """Requests in order of first appearance (R); columns as in `moescope.core.batch.Requests`."""

    ids: tuple[str, ...]
    tasks: tuple[str, ...]
    scenes: tuple[str, ...]
    phase_starts: NDArray[np.int32]
    cached_tokens: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRows:
    """T rows in any order; columns as in `moescope.core.batch.Tokens`.

    Attributes:
        layers: Decoder-layer indices, ascending.
        ids: [T, L, k].
        weights: float32 [T, L, k] in the order of `ids`, or None.
        rank_order: What the order of a row's ids means.
        id_space: Whether ids name logical or physical experts.
    """

    model: str
    revision: str
    engine: str
    experts: int
    layers: tuple[int, ...]
    requests: ImportedRequests
    request: NDArray[np.int32]
    position: NDArray[np.int32]
    phase: NDArray[np.uint8]
    ids: NDArray[np.integer[Any]]
    weights: NDArray[np.float32] | None = None
    event_time_us: NDArray[np.int64] | None = None
    pass_id: NDArray[np.int64] | None = None
    step: NDArray[np.int64] | None = None
    rank_order: RankOrder = RankOrder.UNKNOWN
    id_space: IdSpace = IdSpace.LOGICAL
    notes: tuple[str, ...] = ()
    suspicious: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of rows T."""
        return len(self.request)


def phase_starts_from_rows(
    requests: int,
    request: NDArray[np.int32],
    position: NDArray[np.int32],
    phase: NDArray[np.uint8],
    prompt_tokens: NDArray[np.int32],
) -> NDArray[np.int32]:
    """First position of each phase as far as a file tells it, int32 [R, phases].

    Prefill, eval and train start at 0. Decode starts at the prompt's length: as given, else
    where prefill rows end and decode rows follow without a gap. Otherwise it is unknown, and
    never the first decode row seen.

    Args:
        requests: R.
        request: int32 [T].
        position: int32 [T].
        phase: uint8 [T].
        prompt_tokens: int32 [R], −1 where not given.
    """
    starts = np.full((requests, len(Phase)), NO_START, np.int32)
    for other in (Phase.PREFILL, Phase.EVAL, Phase.TRAIN):
        starts[request[phase == other], other] = 0
    prompt_end = np.full(requests, -1, np.int64)
    prefill = phase == Phase.PREFILL
    np.maximum.at(prompt_end, request[prefill], position[prefill].astype(np.int64) + 1)
    first_decode = np.full(requests, 2**62, np.int64)
    decode = phase == Phase.DECODE
    np.minimum.at(first_decode, request[decode], position[decode].astype(np.int64))
    adjoining = prompt_end == first_decode
    starts[adjoining, Phase.DECODE] = prompt_end[adjoining]
    given = prompt_tokens >= 0
    starts[given, Phase.DECODE] = prompt_tokens[given]
    return starts
