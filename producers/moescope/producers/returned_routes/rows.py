"""Which rows of a returned sequence can be recorded, and why the others cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.producers.importers.errors import RejectedLineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from moescope.producers.importers.sequences import Sequence

ALL_ZERO = "all-zero routes"
UNKNOWN_IDS = "unknown ids in returned routes"
_ZEROS_OF_ONE_EXPERT = 32
"""With one expert per token, so many (row, layer) pairs of expert 0 and nothing else are zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRows:
    """Rows of a sequence.

    Attributes:
        positions: int32 [T], of the rows that can be recorded. phases: uint8 [T].
        ids: int64 [T, L, k], MoE layers only.
        missed: Computed rows that cannot be seen, by reason.
        cached, repeated: Rows left out since they were not computed, or recorded before.
    """

    positions: NDArray[np.int32]
    phases: NDArray[np.uint8]
    ids: NDArray[np.int64]
    missed: dict[str, int]
    cached: int
    repeated: int


def moe_layers_of(
    sequence: Sequence, layers: tuple[int, ...], top_k: int, hidden_layers: int | None
) -> NDArray[np.int64]:
    """Ids of the MoE layers, int64 [T, L, k].

    Args:
        sequence: As returned: all hidden layers, or the MoE layers only.
        layers: Decoder-layer indices of the MoE layers.
        top_k: k of the model.
        hidden_layers: All decoder layers, if known.

    Raises:
        RejectedLineError: It has another shape than the model.
    """
    _, returned, width = sequence.routes.shape
    if width != top_k:
        raise RejectedLineError("returned routes of another top-k", f"{width}, not {top_k}")
    is_whole = returned > layers[-1] if hidden_layers is None else returned == hidden_layers
    if is_whole:
        return sequence.routes[:, list(layers), :]
    if returned == len(layers):
        return sequence.routes
    wanted = hidden_layers or layers[-1] + 1
    raise RejectedLineError("returned routes of another number of layers", f"{returned}, {wanted}")


def seen_rows(sequence: Sequence, ids: NDArray[np.int64], recorded_below: int) -> SeenRows:
    """Sort rows into those that can be recorded and others.

    Args:
        sequence: As returned.
        ids: Of its MoE layers, int64 [T, L, k].
        recorded_below: Positions below were recorded in an earlier turn.
    """
    positions = sequence.positions
    cached = positions < sequence.cached_tokens
    repeated = ~cached & (positions < recorded_below)
    is_new = ~cached & ~repeated
    unknown = is_new & (ids < 0).any(axis=(1, 2))
    zeros = is_new & ~unknown & ~ids.any(axis=(1, 2))
    if ids.shape[2] == 1 and not _must_be_unfilled(ids[is_new]):
        zeros[:] = False
    seen = is_new & ~unknown & ~zeros
    counted = {UNKNOWN_IDS: int(unknown.sum()), ALL_ZERO: int(zeros.sum())}
    return SeenRows(
        positions=positions[seen],
        phases=sequence.phases[seen],
        ids=ids[seen],
        missed={reason: count for reason, count in counted.items() if count},
        cached=int(cached.sum()),
        repeated=int(repeated.sum()),
    )


def _must_be_unfilled(ids: NDArray[np.int64]) -> bool:
    return ids.size >= _ZEROS_OF_ONE_EXPERT and not ids.any()
