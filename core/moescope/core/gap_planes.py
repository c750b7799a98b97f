"""Expert ids as gap planes, and back: the form that batches have in memory and on the wire.

Per layer, experts are relabelled by popularity; within a (layer, token) the popularity ranks
are sorted, and all but the first are replaced by the gap to the one before. Small numbers in
long planes compress close to their entropy, and prefix sums undo them at memory speed.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BYTE_VALUES = 256
_SAMPLED_TOKENS = 512
"""Popularity is estimated from about this many tokens: twice as many take 0.2 % off the wire
size and a tenth off the speed."""
_ASSIGNMENTS_PER_EXPERT = 16
"""With fewer, a layer's permutation takes more bytes than it saves."""
_LARGEST_NETWORK = 32
_MOST_NARROW_PLANES = 257
"""Sums of so many bytes fit into two."""
_CHUNK_BYTES = 1 << 16
"""Of one plane while sorting: all k planes of a chunk stay in the second-level cache."""


def popularity_relabelling(
    expert_ids: NDArray[np.integer[Any]], experts: int, largest_id: int
) -> NDArray[np.uint16]:
    """Order each layer's experts by how often they appear, most popular first.

    The identity is returned when there are too few tokens for the permutations to earn their
    own bytes. Ties keep the order of ids.

    Args:
        expert_ids: [T, L, k]; ids ≥ `experts` are ignored.
        experts: E.
        largest_id: The largest of the ids.

    Returns:
        uint16 [L, E]: the expert at each popularity rank.
    """
    tokens, layers, k = expert_ids.shape
    if tokens * k < _ASSIGNMENTS_PER_EXPERT * experts:
        return np.tile(np.arange(experts, dtype=np.uint16), (layers, 1))
    sample = expert_ids[:: max(1, tokens // _SAMPLED_TOKENS)]
    bins = experts + 1  # the last one for ids ≥ E
    if largest_id >= experts:
        sample = np.minimum(sample.astype(np.intp), experts)
    cells = np.add(sample, (np.arange(layers) * bins)[None, :, None], dtype=np.intp)
    counts = np.bincount(cells.ravel(), minlength=layers * bins)
    counts = counts.reshape(layers, bins)[:, :experts]
    return np.argsort(-counts, axis=1, kind="stable").astype(np.uint16)


def rank_planes(
    expert_ids: NDArray[np.integer[Any]], relabelling: NDArray[np.uint16], largest_id: int
) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """Replace ids by popularity ranks and lay them out in planes.

    Args:
        expert_ids: [T, L, k], from 0 to `largest_id`.
        relabelling: uint16 [L, E].
        largest_id: At most 65,535.

    Returns:
        [k, L, T], in the order of `expert_ids`; uint8 when every rank fits.
    """
    tokens, layers, k = expert_ids.shape
    size = max(relabelling.shape[1], largest_id + 1)
    dtype = np.uint8 if size <= _BYTE_VALUES else np.uint16
    planes = np.empty((k, layers, tokens), dtype)
    ids = _by_layer(expert_ids, dtype)
    for layer in range(layers):
        table = np.arange(max(size, _BYTE_VALUES), dtype=dtype)
        table[relabelling[layer]] = np.arange(relabelling.shape[1], dtype=dtype)
        planes[:, layer, :] = _look_up(table, ids[layer]).T
    return planes


def _by_layer(
    expert_ids: NDArray[np.integer[Any]], dtype: type[np.uint8 | np.uint16]
) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """Bring [T, L, k] into [L, T, k], moving each row as one piece."""
    tokens, layers, k = expert_ids.shape
    narrow = np.ascontiguousarray(expert_ids, dtype=dtype)
    rows = narrow.view(np.dtype((np.void, k * narrow.itemsize))).reshape(tokens, layers)
    moved: NDArray[Any] = np.ascontiguousarray(rows.T).view(dtype)
    return moved.reshape(layers, tokens, k)


def _look_up(
    table: NDArray[Any], ids: NDArray[np.integer[Any]]
) -> NDArray[np.uint8] | NDArray[np.uint16]:
    if table.dtype == np.uint8:  # several times faster than indexing
        translated = ids.tobytes().translate(table.tobytes())
        return np.frombuffer(translated, np.uint8).reshape(ids.shape)
    found: NDArray[np.uint16] = table[ids]
    return found


def sorted_gaps(
    planes: NDArray[np.uint8] | NDArray[np.uint16],
) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """Sort every row of rank planes and take the gaps.

    Args:
        planes: Ranks [k, L, T]; its contents are used up as scratch space.

    Returns:
        Gaps [k, L, T], of the same dtype.
    """
    k = planes.shape[0]
    flat = planes.reshape(k, -1)
    gaps = np.empty_like(flat)
    step = max(1, _CHUNK_BYTES // flat.itemsize)
    for start in range(0, flat.shape[1], step):
        chunk = slice(start, start + step)
        rows = sort_rows([flat[plane, chunk] for plane in range(k)])
        gaps[0, chunk] = rows[0]
        for plane in range(1, k):
            np.subtract(rows[plane], rows[plane - 1], out=gaps[plane, chunk])
    return gaps.reshape(planes.shape)


def sort_rows(planes: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Sort across planes: element i of the results ascends from the first to the last plane.

    Args:
        planes: Equally long arrays; overwritten.

    Returns:
        The sorted planes; their buffers are the given ones and one more, in any order.
    """
    if len(planes) > _LARGEST_NETWORK:
        return list(np.sort(np.stack(planes), axis=0))
    planes = list(planes)
    spare = np.empty_like(planes[0])
    for low, high in comparator_network(len(planes)):
        first, second = planes[low], planes[high]
        np.minimum(first, second, out=spare)
        np.maximum(first, second, out=second)
        planes[low], spare = spare, first
    return planes


@cache
def comparator_network(size: int) -> tuple[tuple[int, int], ...]:
    """Comparators of Batcher's odd-even merge sort (Knuth, TAOCP 3, algorithm 5.2.2M).

    Args:
        size: Number of elements to sort.

    Returns:
        Pairs (i, j), i < j, to be put in order one after the other. 19 pairs for 8 elements.
    """
    pairs: list[tuple[int, int]] = []
    top = 1 << max(0, (size - 1).bit_length() - 1)
    p = top if size > 1 else 0
    while p:
        q, r, d = top, 0, p
        while d:
            pairs += [(i, i + d) for i in range(size - d) if i & p == r]
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return tuple(pairs)


def row_order(planes: NDArray[np.uint8] | NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Tell where each sorted rank stood before.

    Args:
        planes: Ranks [k, L, T], k ≤ 256.

    Returns:
        uint8 [k, L, T]: the plane that each sorted rank came from; equal ranks keep their
        order.
    """
    k = planes.shape[0]
    keys = planes.astype(np.uint32).reshape(k, -1)
    keys <<= 8
    keys |= np.arange(k, dtype=np.uint32)[:, None]
    order = np.empty(keys.shape, np.uint8)
    for plane, row in enumerate(sort_rows(list(keys))):
        order[plane] = row & 0xFF
    return order.reshape(planes.shape)


def index_of_rank(
    gaps: NDArray[np.uint8] | NDArray[np.uint16], rank: NDArray[np.uint8] | NDArray[np.uint16]
) -> NDArray[np.uint8]:
    """Tell where in its sorted row a rank stands.

    Args:
        gaps: [k, L, T], k ≤ 256.
        rank: [L, T], one of the row's ranks each.

    Returns:
        uint8 [L, T]: the number of smaller ranks in the row.
    """
    index = np.zeros(rank.shape, np.uint8)
    current = gaps[0].copy()
    for plane in range(gaps.shape[0]):
        if plane:
            current += gaps[plane]
        index += current < rank
    return index


def ids_from_gaps(
    gaps: NDArray[np.uint8] | NDArray[np.uint16], relabelling: NDArray[np.uint16]
) -> NDArray[np.uint16]:
    """Undo gaps and relabelling.

    Args:
        gaps: [k, L, T].
        relabelling: uint16 [L, E].

    Returns:
        uint16 [T, L, k], each row in ascending popularity-rank order.
    """
    k, layers, tokens = gaps.shape
    experts = relabelling.shape[1]
    ranks = np.cumsum(gaps, axis=0, dtype=gaps.dtype)
    table = np.arange(1 << (8 * gaps.itemsize), dtype=np.uint16)
    if experts > len(table):
        table = np.arange(experts, dtype=np.uint16)
    ids = np.empty((tokens, layers, k), np.uint16)
    for layer in range(layers):
        table[:experts] = relabelling[layer]
        ids[:, layer, :] = table[ranks[:, layer, :]].T
    return ids


def largest_rank(gaps: NDArray[np.uint8] | NDArray[np.uint16]) -> int:
    """The largest popularity rank of gap planes, whether or not it fits their dtype.

    Args:
        gaps: [k, L, T].
    """
    flat = gaps.reshape(gaps.shape[0], -1)
    wide = np.uint16 if flat.itemsize == 1 and len(flat) <= _MOST_NARROW_PLANES else np.uint32
    highest = 0
    for start in range(0, flat.shape[1], _CHUNK_BYTES):
        chunk = flat[:, start : start + _CHUNK_BYTES]
        highest = max(highest, int(np.add.reduce(chunk, axis=0, dtype=wide).max()))
    return highest
