"""Counts what ingest gates will keep out of health, so that the importer can say so at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.producers.importers.imported_rows import ImportedRows

_CHUNK_ROWS = 65_536
IDENTICAL_RUN = 33


def suspicious(rows: ImportedRows) -> dict[str, int]:
    """Both (row, layer) pairs and rows, by what is suspicious about them."""
    return suspicious_pairs(rows.ids, rows.experts) | suspicious_rows(rows)


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


def suspicious_rows(rows: ImportedRows) -> dict[str, int]:
    """Rows in a run of identical ones at consecutive positions: warm-up, or a stuck buffer.

    A run is suspicious from its 33rd row on, which is where the gates stop to count it.
    """
    order = np.lexsort((rows.position, rows.request))
    request, position = rows.request[order], rows.position[order]
    ids = np.sort(rows.ids[order], axis=-1)
    same = np.zeros(len(order), np.bool_)
    same[1:] = (request[1:] == request[:-1]) & (position[1:] == position[:-1] + 1)
    for first in range(1, len(order), _CHUNK_ROWS):
        end = min(first + _CHUNK_ROWS, len(order))
        same[first:end] &= (ids[first:end] == ids[first - 1 : end - 1]).all(axis=(1, 2))
    numbers = np.arange(len(order))
    run = numbers - np.maximum.accumulate(np.where(same, 0, numbers)) if len(order) else numbers
    count = int((run >= IDENTICAL_RUN - 1).sum())
    return {"rows in a run of identical ones": count} if count else {}
