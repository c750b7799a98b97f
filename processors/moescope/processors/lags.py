"""The last 64 rows of sampled requests, for the overlap at lags."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.router_sums import LAGS, LagSums
from moescope.processors.kernels.ranks import WORD
from moescope.processors.row_sampling import salted_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SALT = b"moescope-lag-overlap"
NO_RING = -1
FIRST_RINGS = 4
FIRST_PANES = 4


def is_lag_sampled(request: str, ratio: float) -> bool:
    """Whether a request's last rows are kept; the same on every processor."""
    return ratio > 0 and salted_hash(request, _SALT) < ratio * 2.0**64


class LagPanes:
    """Lag overlaps of panes between two commits, in one block of memory.

    Attributes:
        overlap, pairs: int64 [capacity, L, LAGS], the furthest lag first.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._row_of: dict[int, int] = {}
        self._used = 0
        self._allocate(0)

    def _allocate(self, capacity: int) -> None:
        shape = (capacity, self._layers, LAGS)
        self.overlap, self.pairs = np.zeros(shape, np.int64), np.zeros(shape, np.int64)

    def rows(self, panes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of panes by number, opened when they are new."""
        row_of = self._row_of
        numbers = panes.tolist()
        for number in numbers:
            if number not in row_of:
                row_of[number] = self._open()
        return np.array([row_of[number] for number in numbers], np.int64)

    def _open(self) -> int:
        row = self._used
        if row == len(self.pairs):
            overlap, pairs = self.overlap, self.pairs
            self._allocate(max(FIRST_PANES, 2 * row))
            self.overlap[:row], self.pairs[:row] = overlap, pairs
        self._used += 1
        return row

    def take(self, pane: int) -> LagSums | None:
        """Sums of a pane since the last call; None: no pairs."""
        row = self._row_of.pop(pane, None)
        if row is None:
            return None
        sums = LagSums(self.overlap[row, :, ::-1].copy(), self.pairs[row, :, ::-1].copy())
        if not self._row_of:
            self.clear()
        return sums if sums.pairs.any() else None

    def clear(self) -> None:
        """Throw everything away."""
        self._row_of.clear()
        self.overlap[: self._used] = 0
        self.pairs[: self._used] = 0
        self._used = 0


class LagRings:
    """Rings of the last 64 rows, one per sampled request; see `kernels.profiles.add_lags`.

    Args:
        layers, experts: L, E.
        ratio: share of requests that get a ring.
    """

    def __init__(self, layers: int, experts: int, ratio: float) -> None:
        self._ratio = ratio
        words = -(-experts // WORD)
        self.bits = np.zeros((0, layers, words, 2 * LAGS), np.uint64)
        self.sound = np.zeros((0, layers, 2 * LAGS), np.uint8)
        self.offsets = np.zeros((0, LAGS), np.int64)
        self.kept = np.zeros(0, np.int64)
        self.last = np.zeros(0, np.int64)
        self._free: list[int] = []

    def take(self, request: str) -> int:
        """A ring for a request, or `NO_RING` when it is not sampled."""
        if not is_lag_sampled(request, self._ratio):
            return NO_RING
        if not self._free:
            self._grow()
        ring = self._free.pop()
        self.kept[ring] = 0
        return ring

    def give_back(self, ring: int) -> None:
        """Free a ring; `NO_RING` is none."""
        if ring != NO_RING:
            self.kept[ring] = 0
            self._free.append(ring)

    def lowest_offset(self, rings: NDArray[np.int64], contiguous: NDArray[np.int64]) -> int | None:
        """Lowest record offset of a row that is kept and may still be compared with.

        Args:
            rings: int64 [n], rings in use.
            contiguous: int64 [n], how many of the request's last rows are contiguous.
        """
        rows = np.minimum(self.kept[rings], contiguous)
        rings, rows = rings[rows > 0], rows[rows > 0]
        if not len(rings):
            return None
        oldest = (self.last[rings] - rows + 1) % LAGS
        return int(self.offsets[rings, oldest].min())

    def _grow(self) -> None:
        used = len(self.kept)
        capacity = max(FIRST_RINGS, 2 * used)
        for name in ("bits", "sound", "offsets", "kept", "last"):
            old = getattr(self, name)
            new = np.zeros((capacity, *old.shape[1:]), old.dtype)
            new[:used] = old
            setattr(self, name, new)
        self._free += range(capacity - 1, used - 1, -1)
