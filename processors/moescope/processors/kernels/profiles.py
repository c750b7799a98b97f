"""Sums of time panes beside counts: rows at sampled positions, lags, counts per request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.router_sums import LAGS, POSITIONS
from moescope.processors.compilation import compiled
from moescope.processors.kernels.pairs import popcount
from moescope.processors.kernels.ranks import WORD, ranks_of_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.processors.kernels.records import Records

    Gaps = NDArray[np.unsignedinteger[Any]]

NOWHERE = -1
_LAST_POSITION = POSITIONS[-1]
PLACE_OF_POSITION = np.full(_LAST_POSITION + 1, NOWHERE, np.int64)
PLACE_OF_POSITION[list(POSITIONS)] = np.arange(len(POSITIONS))


@compiled
def find_positions(
    begin: int,
    end: int,
    request: NDArray[np.int32],
    position: NDArray[np.int32],
    phase: NDArray[np.uint8],
    origins: NDArray[np.int64],
    cell_of_row: NDArray[np.int32],
    places: NDArray[np.int64],
    rows: NDArray[np.int64],
    place_of_row: NDArray[np.int64],
) -> int:
    """Find counted rows at sampled positions.

    Args:
        begin, end: rows.
        request, position, phase: [T].
        origins: int64 [R, phases], where positions count from; −1: nowhere.
        cell_of_row: int32 [T].
        places: `PLACE_OF_POSITION`.
        rows, place_of_row: out, int64 [end − begin].

    Returns:
        How many were found.
    """
    found = 0
    for row in range(begin, end):
        origin = origins[request[row], phase[row]]
        relative = position[row] - origin
        if cell_of_row[row] < 0 or origin < 0 or relative < 0 or relative >= len(places):
            continue
        if places[relative] != NOWHERE:
            rows[found] = row
            place_of_row[found] = places[relative]
            found += 1
    return found


@compiled
def indices_at_positions(
    gaps: Gaps,
    relabelling: NDArray[np.uint16],
    skipped_layers: NDArray[np.bool_],
    rows: NDArray[np.int64],
    place_of_row: NDArray[np.int64],
    out: NDArray[np.int64],
) -> int:
    """Flat indices into [positions, L, E], one per assignment of the sound (row, layer) pairs.

    Args:
        gaps, relabelling, skipped_layers: of the batch.
        rows, place_of_row: int64 [N].
        out: out, int64 [N · L · k].

    Returns:
        How many there are.
    """
    top_k, layers, _ = gaps.shape
    experts = relabelling.shape[1]
    ranks = np.empty(top_k, np.uint16)
    found = 0
    # Layer by layer: rows of a layer lie side by side.
    for layer in range(layers):
        if skipped_layers[layer]:
            continue
        for i in range(len(rows)):
            if not ranks_of_row(gaps, layer, rows[i], experts, ranks):
                continue
            base = (place_of_row[i] * layers + layer) * experts
            for j in range(top_k):
                out[found] = base + relabelling[layer, ranks[j]]
                found += 1
    return found


@compiled
def add_lags(
    gaps: Gaps,
    relabelling: NDArray[np.uint16],
    skipped_layers: NDArray[np.bool_],
    position: NDArray[np.int32],
    offset: int,
    cells: Records,
    chosen: NDArray[np.int64],
    ring_of_cell: NDArray[np.int64],
    pane_of_cell: NDArray[np.int64],
    bits: NDArray[np.uint64],
    sound: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    kept: NDArray[np.int64],
    last: NDArray[np.int64],
    overlap: NDArray[np.int64],
    pairs: NDArray[np.int64],
) -> None:
    """Compare rows of sampled requests with up to 64 rows before them, and keep them.

    A row stands at its position modulo 64 of its request's ring, and once more 64 places further
    on: so the 64 rows before any place lie side by side, the furthest first. The rows of a cell
    are gone through layer by layer: what they are compared with stays in the first-level cache.

    Args:
        gaps, relabelling, skipped_layers, position: of the batch. offset: of the record.
        cells: of the chunk. chosen: int64 [C], those of sampled requests that are counted.
        ring_of_cell, pane_of_cell: int64 [C].
        bits: uint64 [rings, L, words, 2 · LAGS], expert sets. sound: uint8 [rings, L, 2 · LAGS].
        offsets: int64 [rings, LAGS]. kept: int64 [rings], rows in a ring, at consecutive
            positions up to `last` int64 [rings].
        overlap, pairs: out, int64 [panes, L, LAGS], added to, the furthest lag first.
    """
    top_k, layers, _ = gaps.shape
    experts = relabelling.shape[1]
    words = bits.shape[2]
    ranks = np.empty(top_k, np.uint16)
    mine = np.empty(words, np.uint64)
    for index in range(len(chosen)):
        cell = cells[chosen[index]]
        ring = ring_of_cell[index]
        pane = pane_of_cell[index]
        first = cell["row"]
        if cell["contiguous"] == 0 or last[ring] != position[first] - 1:
            kept[ring] = 0
        kept[ring] = min(kept[ring], cell["contiguous"])
        rows = cell["seen"]
        for layer in range(layers):
            planes = bits[ring, layer]
            sound_at = sound[ring, layer]
            for row in range(first, first + rows):
                here = position[row] & (LAGS - 1)
                is_sound = not skipped_layers[layer] and ranks_of_row(
                    gaps, layer, row, experts, ranks
                )
                mine[:] = 0
                if is_sound:
                    for j in range(top_k):
                        expert = relabelling[layer, ranks[j]]
                        mine[expert // WORD] |= np.uint64(1) << np.uint64(expert % WORD)
                    furthest = LAGS - min(kept[ring] + row - first, LAGS)
                    hits = overlap[pane, layer, furthest:]
                    for word in range(words):
                        before = planes[word, here + furthest : here + LAGS]
                        bits_here = mine[word]
                        for i in range(len(hits)):
                            hits[i] += popcount(before[i] & bits_here)
                    compared = pairs[pane, layer, furthest:]
                    sound_before = sound_at[here + furthest : here + LAGS]
                    for i in range(len(compared)):
                        compared[i] += sound_before[i]
                for word in range(words):
                    planes[word, here] = mine[word]
                    planes[word, here + LAGS] = mine[word]
                sound_at[here] = is_sound
                sound_at[here + LAGS] = is_sound
        for row in range(first, first + rows):
            offsets[ring, position[row] & (LAGS - 1)] = offset
        kept[ring] = min(kept[ring] + rows, LAGS)
        last[ring] = position[first] + rows - 1
