"""Request similarity: counts of each request in a pane, summed up when the pane closes."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.router_sums import (
    SIMILARITY_PANE_US,
    SimilaritySums,
)
from moescope.core.vocabulary import Phase
from moescope.processors.kernels.records import PANE_US
from moescope.processors.kernels.similarity import add_counts, sum_requests
from moescope.processors.row_sampling import salted_hash
from moescope.processors.sums import sum_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moescope.processors.config import WindowConfig
    from moescope.processors.kernels.records import Records

_SALT = b"moescope-request-similarity"
OPEN_PANES = 64
"""Per phase; a newer one closes the oldest. Only logs without watermarks get that far."""
FIRST_ROWS = 16
"""Requests that a pane has room for at first."""
_SIZES = {int(Phase[name.upper()]): size for name, size in SIMILARITY_PANE_US.items()}


def similarity_hash(request: str) -> int:
    """64-bit hash that decides which requests are compared, the same on every processor."""
    return salted_hash(request, _SALT)


def similarity_sums(
    counts: NDArray[np.integer[Any]],
    top_k: int,
    fewest_tokens: int,
    *,
    start_us: int,
    size_us: int,
) -> SimilaritySums | None:
    """Sum up one pane.

    Args:
        counts: [R, L, E], of each request.
        top_k: k.
        fewest_tokens: of a request that is compared.
        start_us: start of the pane.
        size_us: its length.

    Returns:
        None where no request has enough tokens at any layer.
    """
    _, layers, experts = counts.shape
    weighted = np.zeros((layers, experts), np.int64)
    squares, requests, left_out = (np.zeros(layers, np.int64) for _ in range(3))
    sum_requests(counts, top_k, fewest_tokens, weighted, squares, requests, left_out)
    if not (requests.any() or left_out.any()):
        return None
    return SimilaritySums(start_us, size_us, weighted, squares, requests, left_out)


def add_similarity_sums(parts: list[SimilaritySums]) -> SimilaritySums:
    """Add the sums of one pane from several partitions."""
    first = parts[0]
    return replace(
        first,
        **{
            name: sum_of([getattr(part, name) for part in parts])
            for name in ("weighted", "squares", "requests", "left_out")
        },
    )


class _Pane:
    """The counts of a pane's requests of smallest hash."""

    def __init__(self, width: int, most_requests: int, offset: int) -> None:
        self.offset = offset
        self._most_requests = most_requests
        # Room for all of them at once would be cleared for each pane, megabytes for a few rows.
        self.counts = np.zeros((min(FIRST_ROWS, most_requests), width), np.uint32)
        self.row_of: dict[int, int] = {}
        self._largest: list[int] = []

    def add(
        self,
        chosen: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        counts: NDArray[np.unsignedinteger[Any]],
    ) -> None:
        """Add cells of requests."""
        if len(self.row_of) >= self._most_requests:
            candidates = hashes <= np.uint64(-self._largest[0])
            chosen, hashes = chosen[candidates], hashes[candidates]
        # Who enters now may be evicted in the same call: nothing is added before all is settled.
        for request in dict.fromkeys(hashes.tolist()):
            if request not in self.row_of:
                self._enter(request)
        rows = np.array([self.row_of.get(each, -1) for each in hashes.tolist()], np.int64)
        add_counts(chosen[rows >= 0], rows[rows >= 0], counts, self.counts)

    def _enter(self, request: int) -> None:
        row = len(self.row_of)
        if row >= self._most_requests:
            if request > -self._largest[0]:
                return
            row = self.row_of.pop(-heapq.heappop(self._largest))
            self.counts[row] = 0
        elif row == len(self.counts):
            self._grow()
        self.row_of[request] = row
        heapq.heappush(self._largest, -request)

    def _grow(self) -> None:
        known = self.counts
        rows = min(2 * len(known), self._most_requests)
        self.counts = np.zeros((rows, known.shape[1]), np.uint32)
        self.counts[: len(known)] = known


class SimilarityPanes:
    """Open similarity panes of a lane.

    Args:
        shape: (L, E).
        top_k: k.
        config: which requests are compared.
        watermark: the partition's: rows of panes that end by then come too late.
    """

    def __init__(
        self, shape: tuple[int, int], top_k: int, config: WindowConfig, watermark: int
    ) -> None:
        self._shape = shape
        self._config = config
        self._top_k = top_k
        self._watermark = watermark
        self._overflowed: dict[int, int] = {}
        self._panes: dict[int, dict[int, _Pane]] = {phase: {} for phase in _SIZES}
        self._closed: list[tuple[int, SimilaritySums]] = []

    def add(
        self,
        cells: Records,
        hashes: NDArray[np.uint64],
        counts: NDArray[np.unsignedinteger[Any]],
        offset: int,
    ) -> None:
        """Add a chunk's cells to their panes.

        Args:
            cells: records [C].
            hashes: uint64 [C], of their requests.
            counts: [C, L·E].
            offset: of the record.
        """
        timed = cells["pane"] != NO_TIME
        for phase, size in _SIZES.items():
            mine = np.flatnonzero(timed & (cells["phase"] == phase))
            if not len(mine):
                continue
            numbers = cells["pane"][mine] // (size // PANE_US)
            for number in sorted(set(numbers.tolist())):
                pane = self._pane(phase, number, offset)
                if pane is not None:
                    here = mine[numbers == number]
                    pane.add(here, hashes[here], counts)

    def _pane(self, phase: int, number: int, offset: int) -> _Pane | None:
        size, panes = _SIZES[phase], self._panes[phase]
        end = (number + 1) * size
        if end <= self._watermark or end <= self._overflowed.get(phase, NO_TIME):
            return None
        pane = panes.get(number)
        if pane is None:
            width = self._shape[0] * self._shape[1]
            pane = panes[number] = _Pane(width, self._config.similarity_requests, offset)
            if len(panes) > OPEN_PANES:
                oldest = min(panes)
                self._overflowed[phase] = (oldest + 1) * size
                self._close(phase, oldest)
                if oldest == number:
                    return None
        return pane

    def _close(self, phase: int, number: int) -> None:
        pane, size = self._panes[phase].pop(number), _SIZES[phase]
        counts = pane.counts[: len(pane.row_of)].reshape(-1, *self._shape)
        sums = similarity_sums(
            counts, self._top_k, self._config.similarity_tokens,
            start_us=number * size, size_us=size,
        )  # fmt: skip
        if sums is not None:
            self._closed.append((phase, sums))

    def advance(self, watermark: int) -> None:
        """Close the panes that the watermark has reached the end of."""
        if watermark <= self._watermark:
            return
        self._watermark = watermark
        for phase, panes in self._panes.items():
            for number in sorted(panes):
                if (number + 1) * _SIZES[phase] <= watermark:
                    self._close(phase, number)

    def seal(self) -> None:
        """Close all: nothing follows."""
        for phase, panes in self._panes.items():
            for number in sorted(panes):
                self._close(phase, number)

    def closed(self) -> Iterator[tuple[int, SimilaritySums]]:
        """Sums of the panes that closed since the last call, and their phases."""
        closed, self._closed = self._closed, []
        yield from closed

    def lowest_offset(self) -> int | None:
        """Lowest record offset that an open pane needs."""
        return min(
            (pane.offset for panes in self._panes.values() for pane in panes.values()),
            default=None,
        )

    def state(self) -> list[tuple[int, int]]:
        """What a restart cannot rebuild: panes closed before their time."""
        return list(self._overflowed.items())

    def restore(self, state: list[tuple[int, int]]) -> None:
        """Take over a saved state."""
        self._overflowed = dict(state)
