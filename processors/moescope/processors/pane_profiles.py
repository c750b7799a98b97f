"""What scope-all time panes carry beside counts: sampled positions, lags, request similarity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moescope.core.batch import NO_START
from moescope.core.clock import NO_TIME
from moescope.core.router_sums import POSITIONS, LagSums, PositionCounts
from moescope.core.vocabulary import Phase
from moescope.processors.kernels.profiles import (
    PLACE_OF_POSITION,
    add_lags,
    find_positions,
    indices_at_positions,
)
from moescope.processors.kernels.records import NONE
from moescope.processors.lags import NO_RING, LagPanes
from moescope.processors.similarity import SimilarityPanes
from moescope.processors.sums import sum_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.batch import Requests, Routes, Tokens
    from moescope.core.emission import LaneKey
    from moescope.processors.config import WindowConfig
    from moescope.processors.kernels.records import Records
    from moescope.processors.request_slots import RequestSlots

PaneOfPhase = tuple[int, int]
"""Number of a 1 s pane, and phase."""

MOST_PENDING = 1 << 20
"""Indices that wait to be counted."""

FEW = 16
"""With fewer indices than a 16th of the places, sorting them beats counting at every place."""


def position_origins(requests: Requests) -> NDArray[np.int64]:
    """Where each phase's sampled positions count from, int64 [R, phases]; `NO_START`: nowhere."""
    origins = requests.phase_starts.astype(np.int64)
    origins[:, Phase.PREFILL] = 0
    origins[:, Phase.TRAIN] = np.maximum(origins[:, Phase.TRAIN], 0)
    return np.maximum(origins, NO_START)


class Chunk(NamedTuple):
    """Planned rows of a batch.

    Attributes:
        tokens, routes, origins, skipped_layers, offset: of the batch.
        begin, end: rows. cell_of_row: int32 [T]; cells: records [C]; counts: [C, L·E].
    """

    tokens: Tokens
    routes: Routes
    origins: NDArray[np.int64]
    skipped_layers: NDArray[np.bool_]
    offset: int
    begin: int
    end: int
    cell_of_row: NDArray[np.int32]
    cells: Records
    counts: NDArray[np.unsignedinteger[Any]]


class _Positions:
    """Flat indices below `size` of one pane, counted now and then."""

    def __init__(self, size: int) -> None:
        self._places = size
        self._waiting: list[NDArray[np.int64]] = []
        self._size = 0
        self._counted = PositionCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))

    def add(self, indices: NDArray[np.int64]) -> None:
        self._waiting.append(indices)
        self._size += len(indices)
        if self._size > MOST_PENDING:
            self.counted()

    def counted(self) -> PositionCounts:
        if self._waiting:
            fresh = count_indices(np.concatenate(self._waiting), self._places)
            known = self._counted
            self._counted = add_position_counts([known, fresh]) if len(known.index) else fresh
            self._waiting, self._size = [], 0
        return self._counted


def count_indices(indices: NDArray[np.int64], size: int) -> PositionCounts:
    """Count flat indices below `size`."""
    if len(indices) < size // FEW:
        index, count = np.unique(indices, return_counts=True)
        return PositionCounts(index, count.astype(np.int64))
    counts = np.bincount(indices)
    index = np.flatnonzero(counts)
    return PositionCounts(index, counts[index].astype(np.int64))


def add_position_counts(parts: list[PositionCounts]) -> PositionCounts:
    """Add sparse counts up."""
    index = np.concatenate([part.index for part in parts])
    # Each part is in order: a stable sort merges runs.
    order = np.argsort(index, kind="stable")
    index = index[order]
    firsts = np.flatnonzero(np.concatenate([[True], index[1:] != index[:-1]])[: len(index)])
    count = np.concatenate([part.count for part in parts]).astype(np.int64, copy=False)[order]
    return PositionCounts(index[firsts], np.add.reduceat(count, firsts) if len(firsts) else count)


class PaneProfiles:
    """Collects them between two commits, and keeps what they need from earlier rows.

    Args:
        key: the lane.
        config: declared windows.
        requests: the lane's remembered requests.
        watermark: the partition's.
    """

    def __init__(
        self, key: LaneKey, config: WindowConfig, requests: RequestSlots, watermark: int
    ) -> None:
        self._requests = requests
        self._shape = (len(key.layers), key.experts)
        self._places = len(POSITIONS) * len(key.layers) * key.experts
        self._top_k = key.top_k
        self._positions: dict[PaneOfPhase, _Positions] = {}
        self._lags = LagPanes(len(key.layers))
        self.similarity = SimilarityPanes(self._shape, key.top_k, config, watermark)

    def add(self, chunk: Chunk) -> None:
        """Add the rows of a chunk."""
        slots = self._requests.slots
        of_cell = chunk.cells["slot"]
        self._add_positions(chunk)
        rings = slots["ring"][of_cell]
        counted = chunk.cell_of_row[chunk.cells["row"]] != NONE
        sampled = np.flatnonzero((rings != NO_RING) & counted & (chunk.cells["pane"] != NO_TIME))
        if len(sampled):
            self._add_lags(chunk, sampled, rings[sampled])
        self.similarity.add(
            chunk.cells, slots["similarity_hash"][of_cell], chunk.counts, chunk.offset
        )

    def _add_positions(self, chunk: Chunk) -> None:
        tokens, routes = chunk.tokens, chunk.routes
        rows, places = (np.empty(chunk.end - chunk.begin, np.int64) for _ in range(2))
        found = find_positions(
            chunk.begin, chunk.end, tokens.request, tokens.position, tokens.phase, chunk.origins,
            chunk.cell_of_row, PLACE_OF_POSITION, rows, places,
        )  # fmt: skip
        if not found:
            return
        rows, places = rows[:found], places[:found]
        cells = chunk.cells[chunk.cell_of_row[rows]]
        timed = cells["pane"] != NO_TIME
        rows, places = rows[timed], places[timed]
        panes, pane_of_row = _panes_of(cells[timed])
        for index, (number, phase) in enumerate(panes):
            here = pane_of_row == index
            out = np.empty(int(here.sum()) * self._shape[0] * self._top_k, np.int64)
            size = indices_at_positions(
                routes.gaps, routes.relabelling, chunk.skipped_layers, rows[here], places[here], out
            )
            if size:
                self._positions.setdefault((number, phase), _Positions(self._places)).add(
                    out[:size]
                )

    def _add_lags(self, chunk: Chunk, sampled: NDArray[np.int64], rings: NDArray[np.int64]) -> None:
        pane_of_cell = self._lags.rows(_pane_codes(chunk.cells[sampled]))
        kept = self._requests.rings
        add_lags(
            chunk.routes.gaps, chunk.routes.relabelling, chunk.skipped_layers,
            chunk.tokens.position, chunk.offset, chunk.cells, sampled, rings,
            pane_of_cell, kept.bits, kept.sound, kept.offsets, kept.kept,
            kept.last, self._lags.overlap, self._lags.pairs,
        )  # fmt: skip

    def take(self, number: int, phase: int) -> tuple[PositionCounts | None, LagSums | None]:
        """Positions and lags of a pane since the last call."""
        positions = self._positions.pop((number, phase), None)
        counted = None if positions is None else positions.counted()
        return counted, self._lags.take(number * len(Phase) + phase)

    def discard(self) -> None:
        """Throw away what would be handed out: it was, before a restart."""
        self._positions.clear()
        self._lags.clear()
        list(self.similarity.closed())


def _pane_codes(cells: Records) -> NDArray[np.int64]:
    codes: NDArray[np.int64] = cells["pane"] * len(Phase) + cells["phase"]
    return codes


def _panes_of(cells: Records) -> tuple[list[PaneOfPhase], NDArray[np.int64]]:
    """Distinct panes of timed cells, and which of them each cell is in."""
    codes, place = np.unique(_pane_codes(cells), return_inverse=True)
    panes = [divmod(code, len(Phase)) for code in codes.tolist()]
    return panes, place.reshape(-1).astype(np.int64)


def add_lag_sums(parts: list[LagSums]) -> LagSums:
    """Add lag overlaps up."""
    return LagSums(
        sum_of([part.overlap for part in parts]),
        sum_of([part.pairs for part in parts]),
    )
