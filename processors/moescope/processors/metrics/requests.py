"""How alike different requests of the same time are: from additive integer sums.

Squares of the sums do not fit into 64 bits; they are taken exactly, so that a window has the same
value however its requests were spread over partitions.
"""

from __future__ import annotations

import math
from itertools import starmap
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.errors import InputError
from moescope.core.router_sums import FIXED_POINT, PositionCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from moescope.core.router_sums import SimilaritySums

MOST_AT_A_POSITION = 2**28
"""Assignments at one position and layer up to which positional agreement is exact in 64 bits."""

_LOW_BITS = 23
_LOW_MASK = (1 << _LOW_BITS) - 1
_SPLIT_LIMIT = 1 << (2 * _LOW_BITS)
_SQUARED_POINT = FIXED_POINT * FIXED_POINT


def positional_agreement(
    positions: PositionCounts | NDArray[np.integer], top_k: int, layers: int, experts: int
) -> NDArray[np.float64]:
    """Share of experts that different requests have in common at the same position.

    Σ_z (Σ_e c_ze² − k R_z) / Σ_z k R_z (R_z − 1), with R_z = Σ_e c_ze / k requests at sampled
    position z: the mean over all pairs of requests of |S ∩ S'| / k.

    Args:
        positions: Counts at sampled positions, summed over the window: sparse, or dense integers
            [positions, L, E].
        top_k: k.
        layers: L.
        experts: E.

    Returns:
        float64 [L]; NaN at layers where no position was reached by two requests.

    Raises:
        InputError: Dense counts have another shape, or a position has over 2^28 assignments.
    """
    if isinstance(positions, PositionCounts):
        row, count = positions.index // experts, positions.count
    else:
        if positions.shape[1:] != (layers, experts):
            raise InputError(
                f"Counts at positions must be [positions, {layers}, {experts}].",
                why=f"Their shape is {positions.shape}.",
            )
        flat = positions.reshape(-1)
        index = np.flatnonzero(flat)
        row, count = index // experts, flat[index].astype(np.int64)
    cells = -(-(int(row[-1]) + 1 if len(row) else 0) // layers) * layers
    assignments = _sums_of_runs(row, count, cells)
    if len(row) and assignments.max() > MOST_AT_A_POSITION:
        raise InputError(
            "A position has too many assignments for exact arithmetic.",
            why=f"It has {assignments.max()}; the limit is 2^28.",
            next_step="Use shorter windows.",
        )
    squares = _sums_of_runs(row, count * count, cells)
    common = (squares - assignments).reshape(-1, layers).sum(axis=0)
    pairs = (assignments * (assignments - top_k)).reshape(-1, layers).sum(axis=0)
    known = pairs > 0
    return np.where(known, top_k * common / np.where(known, pairs, 1), np.nan)


def _sums_of_runs(
    row: NDArray[np.int64], values: NDArray[np.int64], rows: int
) -> NDArray[np.int64]:
    """Sums of values by row, int64 [rows]; `row` is in ascending order."""
    sums = np.zeros(rows, np.int64)
    firsts = np.flatnonzero(np.concatenate([[True], row[1:] != row[:-1]])[: len(row)])
    if len(firsts):
        sums[row[firsts]] = np.add.reduceat(values, firsts)
    return sums


def request_similarity(panes: Sequence[SimilaritySums]) -> NDArray[np.float64]:
    """How alike the loads of concurrent requests are, the noise of their tokens removed.

    Σ (‖Σw‖² − Σ‖w‖²) / Σ R (R − 1) over panes, with the sums of one pane (panes of equal start
    and size) added up first: they come from different partitions.

    Args:
        panes: At least one, all of the same layers and experts.

    Returns:
        float64 [L]; NaN at layers where no pane has two requests.

    Raises:
        InputError: There is no pane, or sums that no requests can have: they leave 64 bits.
    """
    if not panes:
        raise InputError("Request similarity needs at least one pane.")
    by_pane: dict[tuple[int, int], list[SimilaritySums]] = {}
    for pane in panes:
        by_pane.setdefault((pane.start_us, pane.size_us), []).append(pane)
    layers = len(panes[0].requests)
    alike, pairs = [0] * layers, [0] * layers
    for parts in by_pane.values():
        squared_norms = _squared_norms(_added([part.weighted for part in parts]))
        own = _added([part.squares for part in parts]).tolist()
        requests = _added([part.requests for part in parts]).tolist()
        for layer in range(layers):
            alike[layer] += squared_norms[layer] - own[layer]
            pairs[layer] += requests[layer] * (requests[layer] - 1)
    return np.array(list(starmap(_similarity, zip(alike, pairs, strict=True))))


def _similarity(alike: int, pairs: int) -> float:
    return alike / (pairs * _SQUARED_POINT) if pairs > 0 else math.nan


def _added(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    total = parts[0]
    for part in parts[1:]:
        more = total + part
        # A sum has wrapped where both terms have the sign that it lacks.
        if (((total ^ more) & (part ^ more)) < 0).any():
            raise InputError("Similarity sums of a pane are beyond 64 bits: they are damaged.")
        total = more
    return total


def _squared_norms(vectors: NDArray[np.int64]) -> list[int]:
    """‖v‖² of each row, exactly, in integers of any size.

    With v = a·2²³ + b, v² = a²·2⁴⁶ + a·b·2²⁴ + b²: three sums that fit into 64 bits for |v| < 2⁴⁶
    and up to 2¹⁶ entries.
    """
    if vectors.size == 0:
        return [0] * len(vectors)
    if not -_SPLIT_LIMIT < vectors.min() <= vectors.max() < _SPLIT_LIMIT:
        return [sum(entry * entry for entry in row) for row in vectors.tolist()]
    high, low = vectors >> _LOW_BITS, vectors & _LOW_MASK
    parts = zip(
        (high * high).sum(axis=1).tolist(),
        (high * low).sum(axis=1).tolist(),
        (low * low).sum(axis=1).tolist(),
        strict=True,
    )
    return [
        (top << (2 * _LOW_BITS)) + (middle << (_LOW_BITS + 1)) + bottom
        for top, middle, bottom in parts
    ]
