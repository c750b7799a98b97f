"""Counts what ingest gates will keep out of health, so that the importer can say so at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK_ROWS = 65_536


def suspicious_pairs(ids: NDArray[np.integer[Any]], experts: int) -> dict[str, int]:
    """(Row, layer) pairs with repeated, impossible or all-zero ids; only those that occur.

    Args:
        ids: [T, L, k].
        experts: E.
    """
    found = {"repeated ids": 0, "ids beyond the experts": 0, "all-zero ids": 0}
    for first in range(0, len(ids), _CHUNK_ROWS):
        part = np.sort(ids[first : first + _CHUNK_ROWS], axis=-1)
        zeros = (part[..., -1] == 0) if part.shape[-1] > 1 else np.zeros(part.shape[:-1], np.bool_)
        repeated = (part[..., 1:] == part[..., :-1]).any(axis=-1) & ~zeros
        found["all-zero ids"] += int(zeros.sum())
        found["repeated ids"] += int(repeated.sum())
        found["ids beyond the experts"] += int((part[..., -1] >= experts).sum())
    return {name: count for name, count in found.items() if count}
