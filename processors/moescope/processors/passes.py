"""Forward passes of a lane: open while more of their rows may come, then handed out as sums.

A pass is what one node computed together: its rows with one pass id and one event time. It is
complete once the node's own watermark is past that time, since nothing earlier follows then. So it
does not matter how its rows were cut into batches, and where a producer cuts between passes, none
stays open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.router_sums import FIXED_POINT, PassSums
from moescope.processors.kernels.passes import index_passes, load_passes, order_by_pass
from moescope.processors.kernels.records import NONE, SILENCE_US
from moescope.processors.sums import sum_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from moescope.core.batch import Routes, Tokens

OPEN_BYTES = 32 << 20
FEWEST_OPEN = 16
_Pane = TypeVar("_Pane")
_NO_STEPS = np.zeros(0, np.int64)


class PassKey(NamedTuple):
    """Which pass: event time first, so that keys are in order of time."""

    time_us: int
    node: str
    pass_id: int


class PassRows(NamedTuple):
    """Rows of a batch.

    Attributes:
        tokens, routes: Of the batch.
        cell_of_row: int32 [T], negative where a row was not accepted.
        skipped_layers: bool [L].
    """

    tokens: Tokens
    routes: Routes
    cell_of_row: NDArray[np.int32]
    skipped_layers: NDArray[np.bool_]


class ClosedPasses(NamedTuple):
    """P complete passes of a node.

    Attributes:
        time_us, steps, phases: int64 [P]; `NO_TIME` without a step; phases are bits.
        imbalance: int64 [P, L], fixed-point; 0 where a pass has no row.
    """

    node: str
    time_us: NDArray[np.int64]
    steps: NDArray[np.int64]
    phases: NDArray[np.int64]
    imbalance: NDArray[np.int64]


class _Open(NamedTuple):
    """An open pass; `waited_from_us` is where the partition was at its newest row."""

    phases: int
    step: int
    waited_from_us: int
    counts: NDArray[np.uint32]


class OpenPasses:
    """Passes of which more rows may come.

    Args:
        layers, experts: L, E.
        watermark_us: The partition's.
        most_open: Beyond so many the earliest are taken for complete; by default what
            `OPEN_BYTES` holds.
    """

    def __init__(
        self,
        layers: int,
        experts: int,
        watermark_us: int = NO_TIME,
        most_open: int | None = None,
    ) -> None:
        self._watermark_us = watermark_us
        self._shape = (layers, experts)
        fitting = max(FEWEST_OPEN, OPEN_BYTES // (4 * layers * experts or 1))
        self._most = fitting if most_open is None else most_open
        self._open: dict[PassKey, _Open] = {}

    def __len__(self) -> int:
        """Open passes."""
        return len(self._open)

    def add(self, node: str, watermark_us: int, rows: PassRows) -> list[ClosedPasses]:
        """Add a batch's rows, and take out the node's passes that are complete with it.

        Args:
            node: Who sent the batch.
            watermark_us: Of its header.
            rows: Of the batch.
        """
        tokens, routes = rows.tokens, rows.routes
        pass_id, time = tokens.pass_id, tokens.event_time_us
        if pass_id is None or time is None:
            return self.close(node, watermark_us)
        total = len(tokens)
        pass_of_row, first_row, phases, steps = (np.empty(total, np.int64) for _ in range(4))
        passes = index_passes(
            pass_id, time, _NO_STEPS if tokens.step is None else tokens.step, tokens.phase,
            tokens.flags, rows.cell_of_row, np.full(1 << total.bit_length() + 1, NONE, np.int64),
            pass_of_row, first_row, phases, steps,
        )  # fmt: skip
        if not passes:
            return self.close(node, watermark_us)
        starts = np.empty(passes + 1, np.int64)
        order = order_by_pass(pass_of_row, starts)
        first_row, phases, steps = first_row[:passes], phases[:passes], steps[:passes]
        ids, times = pass_id[first_row], time[first_row]
        keys = self._kept_keys(node, ids, times, watermark_us)
        kept_as = np.full(passes, NONE, np.int64)
        kept = np.zeros((len(keys), *self._shape), np.uint32)
        for place, (index, key) in enumerate(keys.items()):
            kept_as[index] = place
            known = self._open.pop(key, None)
            if known is not None:
                kept[place] = known.counts
                phases[index] |= known.phases
                steps[index] = max(int(steps[index]), known.step)
        imbalance = np.empty((passes, self._shape[0]), np.int64)
        load_passes(
            routes.gaps, routes.relabelling, rows.skipped_layers, order, starts, kept_as, kept,
            imbalance,
        )  # fmt: skip
        is_complete = times < watermark_us
        for place, (index, key) in enumerate(keys.items()):
            if not is_complete[index]:
                counts = kept[place].copy()
                self._open[key] = _Open(
                    int(phases[index]), int(steps[index]), max(key.time_us, self._watermark_us),
                    counts,
                )  # fmt: skip
        closed = self.close(node, watermark_us)
        if is_complete.any():
            closed.append(
                ClosedPasses(
                    node, times[is_complete], steps[is_complete], phases[is_complete],
                    imbalance[is_complete],
                )
            )  # fmt: skip
        return closed + self._overflowing()

    def _kept_keys(
        self, node: str, ids: NDArray[np.int64], times: NDArray[np.int64], watermark_us: int
    ) -> dict[int, PassKey]:
        """Passes that go beyond their batch: begun in an earlier one, or not complete yet."""
        index = set(np.flatnonzero(times >= watermark_us).tolist())
        for key in self._open:
            if key.node == node:
                index.update(np.flatnonzero((ids == key.pass_id) & (times == key.time_us)).tolist())
        return {each: PassKey(int(times[each]), node, int(ids[each])) for each in sorted(index)}

    def close(self, node: str, watermark_us: int) -> list[ClosedPasses]:
        """Take out a node's passes before its watermark."""
        if not self._open:
            return []
        return self._take(
            key for key in self._open if key.node == node and key.time_us < watermark_us
        )

    def advance(self, watermark_us: int) -> list[ClosedPasses]:
        """Take the partition's watermark, and take out what nodes left open that fell silent."""
        self._watermark_us = watermark_us
        if not self._open:
            return []
        return self._take(
            key
            for key, known in self._open.items()
            if known.waited_from_us + SILENCE_US <= watermark_us
        )

    def seal(self) -> list[ClosedPasses]:
        """Take out all: nothing follows."""
        return self._take(self._open)

    def _overflowing(self) -> list[ClosedPasses]:
        """Take out the earliest where too many are open, as of a node without a watermark."""
        return self._take(sorted(self._open)[: max(0, len(self._open) - self._most)])

    def _take(self, keys: Iterable[PassKey]) -> list[ClosedPasses]:
        closed = []
        for key in sorted(keys):
            known = self._open.pop(key)
            time, step, phases = (
                np.array([each], np.int64) for each in (key.time_us, known.step, known.phases)
            )
            imbalance = imbalance_of(known.counts)[None]
            closed.append(ClosedPasses(key.node, time, step, phases, imbalance))
        return closed

    # ---- memory --------------------------------------------------------------------------

    def state(self) -> tuple[list[list[Any]], NDArray[np.uint32]]:
        """All that is open: rows of an open pass are not read again after a restart."""
        counts = np.zeros((len(self._open), *self._shape), np.uint32)
        values: list[list[Any]] = []
        for index, (key, known) in enumerate(self._open.items()):
            counts[index] = known.counts
            values.append([*key, known.phases, known.step, known.waited_from_us])
        return values, counts

    def restore(self, values: Sequence[Sequence[Any]], counts: NDArray[np.uint32]) -> None:
        """Take over a saved state."""
        self._open = {
            PassKey(*key): _Open(phases, step, waited_from_us, counts[index].copy())
            for index, (*key, phases, step, waited_from_us) in enumerate(values)
        }


def imbalance_of(counts: NDArray[np.uint32]) -> NDArray[np.int64]:
    """E · max(c) / Σ c, fixed-point: int64 [L] of counts [L, E]; 0 without a row."""
    load = counts.sum(axis=1, dtype=np.int64)
    scaled = counts.max(axis=1).astype(np.int64) * (FIXED_POINT * counts.shape[1])
    return np.where(load > 0, scaled // np.maximum(load, 1), 0)


def pass_sums(imbalance: NDArray[np.int64]) -> PassSums:
    """Sums over passes; imbalance int64 [P, L]."""
    return PassSums((imbalance > 0).sum(axis=0), imbalance.sum(axis=0), imbalance.max(axis=0))


def add_pass_sums(parts: Sequence[PassSums]) -> PassSums:
    """Add up passes of panes; the greatest stays the greatest."""
    largest = parts[0].largest
    for part in parts[1:]:
        largest = np.maximum(largest, part.largest)
    return PassSums(
        sum_of([part.passes for part in parts]), sum_of([part.imbalance for part in parts]), largest
    )


class PassPanes:
    """Sums of complete passes by pane, between two commits.

    Args:
        step_pane: Steps of a step pane; 0: there are none.
        pane_us: Length of a time pane.
    """

    def __init__(self, pane_us: int, step_pane: int) -> None:
        self._pane_us = pane_us
        self._step_pane = step_pane
        self.by_time: dict[tuple[int, int, str], PassSums] = {}
        self.by_step: dict[tuple[int, int], PassSums] = {}

    def add(self, closed: ClosedPasses) -> None:
        """Add complete passes to the panes of each phase that they have accepted rows of."""
        panes = closed.time_us // self._pane_us
        for phase in range(int(np.bitwise_or.reduce(closed.phases)).bit_length()):
            of_phase = (closed.phases >> phase & 1).astype(np.bool_)
            for pane in np.unique(panes[of_phase]).tolist():
                imbalance = closed.imbalance[of_phase & (panes == pane)]
                _add_to(self.by_time, (pane, phase, closed.node), pass_sums(imbalance))
            if not self._step_pane:
                continue
            stepping = of_phase & (closed.steps != NO_TIME)
            step_panes = closed.steps // self._step_pane
            for pane in np.unique(step_panes[stepping]).tolist():
                imbalance = closed.imbalance[stepping & (step_panes == pane)]
                _add_to(self.by_step, (pane, phase), pass_sums(imbalance))


def _add_to(panes: dict[_Pane, PassSums], key: _Pane, sums: PassSums) -> None:
    known = panes.get(key)
    panes[key] = sums if known is None else add_pass_sums([known, sums])


__all__ = [
    "ClosedPasses",
    "OpenPasses",
    "PassPanes",
    "PassRows",
    "add_pass_sums",
    "imbalance_of",
    "pass_sums",
]
