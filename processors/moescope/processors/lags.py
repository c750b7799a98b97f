"""The last 64 rows of sampled requests, for the overlap at lags."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.router_sums import LAGS
from moescope.processors.kernels.ranks import WORD
from moescope.processors.row_sampling import salted_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SALT = b"moescope-lag-overlap"
NO_RING = -1
FIRST_RINGS = 4


def is_lag_sampled(request: str, ratio: float) -> bool:
    """Whether a request's last rows are kept; the same on every processor."""
    return ratio > 0 and salted_hash(request, _SALT) < ratio * 2.0**64


class LagRings:
    """Rings of the last 64 rows, one per sampled request; see `kernels.profiles.add_lags`.

    Args:
        layers, experts: L, E.
        ratio: share of requests that get a ring.
    """

    def __init__(self, layers: int, experts: int, ratio: float) -> None:
        self._ratio = ratio
        words = -(-experts // WORD)
        self.bits = np.zeros((0, layers, words, LAGS), np.uint64)
        self.sound = np.zeros((0, layers, LAGS), np.uint8)
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
