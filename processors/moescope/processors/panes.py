"""Panes of shared windows between two commits: additive, and handed out at every commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moescope.core.metrics import DROPS_UNKNOWN
from moescope.core.router_sums import ROUTER_SUMS
from moescope.core.vocabulary import Phase
from moescope.processors.kernels.apply import add_cells

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moescope.processors.kernels.records import Records

NO_FIRST = 2**63 - 1
NO_LAST = -(2**63)
UNKNOWN_DROPS = np.uint64(1 << 40)
"""Added once per cell whose producer does not tell drops: sums of it stay above any real number
of assignments until `told_drops` says so."""
PHASE_NAMES = {int(phase): phase.name.lower() for phase in Phase}
"""Names of phases by number, as windows have them."""
_NOT_TOLD = np.uint64(DROPS_UNKNOWN)


def told_drops(sums: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sums of drops as others read them: `DROPS_UNKNOWN` where one part does not tell."""
    return np.where(sums >= UNKNOWN_DROPS, _NOT_TOLD, sums)


def told_router(router: NDArray[np.int64], layers: int) -> NDArray[np.int64] | None:
    """Router sums as others read them, from flat ones [.., L · ROUTER_SUMS]; None without any."""
    if not router.shape[-1]:
        return None
    return router.reshape(*router.shape[:-1], layers, ROUTER_SUMS)


class PaneKey(NamedTuple):
    """Which pane: its number (seconds since the epoch, or step panes), phase, scene and node."""

    number: int
    phase: int
    scene: int
    node: str


class Pane(NamedTuple):
    """One pane's sums; arrays are the caller's to keep. `router` is flat, and may be empty."""

    counts: NDArray[np.uint32]
    dropped: NDArray[np.uint64]
    router: NDArray[np.int64]
    seen: int
    first_time_us: int
    last_time_us: int
    gaps: NDArray[np.int64]
    lost: int
    unknown_gap: bool


class PaneArena:
    """Open panes by key, their counts in one block of memory.

    Args:
        layers, experts: L, E.
        gap_limit: entries of the gap histogram; 0 where it is not used.
        with_router: whether there are router sums.
    """

    def __init__(self, layers: int, experts: int, gap_limit: int, *, with_router: bool) -> None:
        self._shape = (layers, experts)
        self._sums = layers * ROUTER_SUMS if with_router else 0
        self._gap_limit = gap_limit
        self._rows: dict[PaneKey, int] = {}
        self._allocate(16)

    def _allocate(self, capacity: int) -> None:
        layers, experts = self._shape
        self._counts = np.zeros((capacity, layers * experts), np.uint32)
        self._dropped = np.zeros((capacity, layers), np.uint64)
        self._router = np.zeros((capacity, self._sums), np.int64)
        self._seen = np.zeros(capacity, np.int64)
        self._first = np.full(capacity, NO_FIRST, np.int64)
        self._last = np.full(capacity, NO_LAST, np.int64)
        self._gaps = np.zeros((capacity, self._gap_limit), np.int64)
        self._lost = np.zeros(capacity, np.int64)
        self._unknown = np.zeros(capacity, np.bool_)

    def _grow(self) -> None:
        old: tuple[NDArray[Any], ...] = (
            self._counts, self._dropped, self._seen, self._first, self._last, self._gaps,
            self._lost, self._unknown, self._router,
        )  # fmt: skip
        used = len(self._rows)
        self._allocate(2 * len(self._seen))
        new: tuple[NDArray[Any], ...] = (
            self._counts, self._dropped, self._seen, self._first, self._last, self._gaps,
            self._lost, self._unknown, self._router,
        )  # fmt: skip
        for source, target in zip(old, new, strict=True):
            np.copyto(target[:used], source[:used])

    def row(self, key: PaneKey) -> int:
        """Row of a key, opened when it is new."""
        found = self._rows.get(key)
        if found is None:
            found = len(self._rows)
            if found == len(self._seen):
                self._grow()
            self._rows[key] = found
        return found

    def add(  # noqa: PLR0917 (a chunk's cells)
        self,
        cells: Records,
        n_cells: int,
        row_of_cell: NDArray[np.int64],
        gap_of_cell: NDArray[np.int64],
        counts: NDArray[np.unsignedinteger[Any]],
        dropped: NDArray[np.unsignedinteger[Any]],
        router: NDArray[np.int64],
    ) -> None:
        """Add cells to the rows named."""
        add_cells(
            cells, n_cells, row_of_cell, gap_of_cell, counts, dropped, router, self._counts,
            self._dropped, self._router, self._seen, self._first, self._last, self._gaps,
        )  # fmt: skip

    def add_block(  # noqa: PLR0917 (one pane's sums)
        self,
        row: int,
        counts: NDArray[np.uint32],
        dropped: NDArray[np.uint32] | None,
        seen: int,
        first_time_us: int,
        last_time_us: int,
        requests: int,
    ) -> None:
        """Add sums that a producer has already made for a pane."""
        self._counts[row] += counts.reshape(-1)
        self._dropped[row] += UNKNOWN_DROPS if dropped is None else dropped.astype(np.uint64)
        self._seen[row] += seen
        self._first[row] = min(self._first[row], first_time_us)
        self._last[row] = max(self._last[row], last_time_us)
        if self._gap_limit:
            # The producer counted requests per second: none is known to go on into the next.
            self._gaps[row, -1] += requests

    def add_lost(self, row: int, lost: int, *, unknown_gap: bool) -> None:
        """Note rows that will never arrive."""
        self._lost[row] += lost
        self._unknown[row] |= unknown_gap

    def __len__(self) -> int:
        """Open panes."""
        return len(self._rows)

    def drain(self) -> Iterator[tuple[PaneKey, Pane]]:
        """Hand out all panes and start anew."""
        shape = self._shape
        for key, row in self._rows.items():
            yield (
                key,
                Pane(
                    self._counts[row].reshape(shape).copy(),
                    self._dropped[row].copy(),
                    self._router[row].copy(),
                    int(self._seen[row]),
                    int(self._first[row]),
                    int(self._last[row]),
                    self._gaps[row].copy(),
                    int(self._lost[row]),
                    bool(self._unknown[row]),
                ),
            )
        used = len(self._rows)
        self._rows.clear()
        for array in (
            self._counts, self._dropped, self._seen, self._gaps, self._lost,
            self._unknown, self._router,
        ):  # fmt: skip
            array[:used] = 0
        self._first[:used] = NO_FIRST
        self._last[:used] = NO_LAST
