"""What a pane knows beside counts, in one binary value: positions, a similarity pane, lags, passes.

Nobody asks for it in SQL, and it lives for minutes only. Layout: one byte of version, then a zstd
frame of arrays one after the other, each as (number of entries, bytes per entry, entries) with
the narrowest signed width. The first array says which parts follow.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from moescope.core.errors import InternalError
from moescope.core.router_sums import LAGS, LagSums, PassSums, PositionCounts, SimilaritySums
from moescope.storage.histogram_rows import compressor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moescope.core.emission import LaneKey, SharedDelta

VERSION = 2
_HEAD = struct.Struct("<IB")
_WIDTHS = tuple((np.dtype(f"<i{size}"), (1 << (8 * size - 1)) - 1) for size in (1, 2, 4, 8))
"""Types from the narrowest, each with the largest value that it holds."""


def encode_extras(delta: SharedDelta) -> bytes | None:
    """What a pane knows beside counts as stored; None where it knows nothing."""
    positions, similarity, lags, passes = (
        delta.positions, delta.similarity, delta.lags, delta.passes,
    )  # fmt: skip
    present = [part is not None for part in (positions, similarity, lags, passes)]
    if not any(present):
        return None
    arrays: list[Any] = [present]
    if positions is not None:
        # Differences of ascending indices fit into one byte, nearly all of them.
        steps = positions.index.copy()
        steps[1:] -= positions.index[:-1]
        arrays += [steps, positions.count]
    if similarity is not None:
        arrays += [
            [similarity.start_us, similarity.size_us],
            similarity.weighted, similarity.squares, similarity.requests, similarity.left_out,
        ]  # fmt: skip
    if lags is not None:
        arrays += [lags.overlap, lags.pairs]
    if passes is not None:
        arrays += [passes.passes, passes.imbalance, passes.largest]
    body = b"".join(_packed(np.asarray(array, np.int64).reshape(-1)) for array in arrays)
    return bytes([VERSION]) + compressor().compress(body)


def decode_extras(blob: bytes | None, lane: LaneKey) -> dict[str, Any]:
    """The fields of a `SharedDelta` that `encode_extras` stored.

    Raises:
        InternalError: Another version of moescope wrote it.
    """
    if blob is None:
        return {}
    if blob[0] != VERSION:
        raise InternalError(
            f"A stored pane has an unknown encoding {blob[0]}.",
            why="Another version of moescope wrote it.",
            next_step="Finish with that version (its panes live for minutes), or start a new file.",
        )
    arrays = _unpacked(zstandard.ZstdDecompressor().decompress(blob[1:]))
    has_positions, has_similarity, has_lags, has_passes = next(arrays).tolist()
    layers = len(lane.layers)
    found: dict[str, Any] = {}
    if has_positions:
        found["positions"] = PositionCounts(np.cumsum(next(arrays)), next(arrays))
    if has_similarity:
        start_us, size_us = next(arrays).tolist()
        weighted = next(arrays).reshape(layers, lane.experts)
        found["similarity"] = SimilaritySums(
            start_us, size_us, weighted, next(arrays), next(arrays), next(arrays)
        )
    if has_lags:
        found["lags"] = LagSums(*(next(arrays).reshape(layers, LAGS) for _ in range(2)))
    if has_passes:
        found["passes"] = PassSums(*(next(arrays) for _ in range(3)))
    return found


def _packed(array: NDArray[np.int64]) -> bytes:
    low, high = (int(extreme.reduce(array, initial=0)) for extreme in (np.minimum, np.maximum))
    width = next(width for width, most in _WIDTHS if -most <= low + 1 and high <= most)
    return _HEAD.pack(len(array), width.itemsize) + array.astype(width).tobytes()


def _unpacked(body: bytes) -> Iterator[NDArray[np.int64]]:
    at = 0
    while at < len(body):
        number, width = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        yield np.frombuffer(body, f"<i{width}", number, at).astype(np.int64)
        at += number * width
