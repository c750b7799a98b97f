"""Cuts imported rows into the batches that an agent would have made of them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.batch import BatchHeader, Requests, Routes, RoutingBatch, Tokens
from moescope.core.clock import NO_TIME
from moescope.core.vocabulary import RankOrder, RowFlag
from moescope.producers.importers.format import ParsedFile
from moescope.producers.importers.suspicion import suspicious

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.imported_rows import ImportedRows

CONTEXT_ROWS = 2
_SECOND_US = 1_000_000
BATCH_BYTES = 1 << 20
_ROW_BYTES = 48
"""Generous bound of a row's columns other than its routes, before compression."""


class RowBatches:
    """Batches of imported rows, in order of event time where there is one.

    Args:
        rows: Of one file.
        identity: Of that file.
        weight_bits: 0 leaves weights out; 4, 8 or 16 stores them.
        first_sequence: Number of the first batch.

    Attributes:
        raised_times: Rows whose event time was raised to that of an earlier position: within a
            request, time never goes back.
    """

    def __init__(
        self,
        rows: ImportedRows,
        identity: ImportIdentity,
        *,
        weight_bits: int = 0,
        first_sequence: int = 0,
    ) -> None:
        self._rows = rows
        self._identity = identity
        self._weight_bits = weight_bits
        self._first_sequence = first_sequence
        self._most_rows = _most_rows(rows, weight_bits)
        by_position = np.lexsort((rows.position, rows.request))
        request = rows.request[by_position]
        self._is_last = np.zeros(len(rows), np.bool_)
        ends = by_position[np.append(request[1:] != request[:-1], [True])]
        self._is_last[ends] = True
        self.raised_times = 0
        self._times: NDArray[np.int64] | None = None
        order = by_position
        if rows.event_time_us is not None:
            self._times = _never_back(rows.event_time_us, by_position, request)
            self.raised_times = int((self._times != rows.event_time_us).sum())
            seconds = self._times[by_position] // _SECOND_US
            order = by_position[np.argsort(seconds, kind="stable")]
        self._order = order
        self._ends_task = self._last_rows_of_tasks()

    def __iter__(self) -> Iterator[RoutingBatch]:
        """The batches; the same each time."""
        kept: dict[int, list[int]] = {}
        for sequence, (first, end) in enumerate(self._cuts(), start=self._first_sequence):
            new = self._order[first:end]
            requests = self._rows.request[new]
            starts = np.flatnonzero(np.append([True], requests[1:] != requests[:-1]))
            pieces: list[NDArray[np.intp]] = []
            context: list[int] = []
            for start, stop in zip(starts, np.append(starts[1:], [len(new)]), strict=True):
                request = int(requests[start])
                before = kept.pop(request, [])
                context += [1] * len(before) + [0] * int(stop - start)
                pieces += [np.array(before, np.intp), new[start:stop]]
                if not self._is_last[new[stop - 1]]:
                    kept[request] = [*before, *new[start:stop][-CONTEXT_ROWS:].tolist()][
                        -CONTEXT_ROWS:
                    ]
            yield self._batch(
                np.concatenate(pieces), np.array(context, np.bool_), sequence, self._watermark(end)
            )

    def __len__(self) -> int:
        """Number of batches."""
        return sum(1 for _ in self._cuts())

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """Ranges of `_order` that make a batch each: at most a second, at most 1 MiB."""
        total = len(self._order)
        borders = np.array([0, total])
        if self._times is not None and total:
            seconds = self._times[self._order] // _SECOND_US
            borders = np.concatenate([[0], np.flatnonzero(np.diff(seconds)) + 1, [total]])
        for begin, stop in pairwise(borders.tolist()):
            for first in range(begin, stop, self._most_rows):
                yield first, min(first + self._most_rows, stop)

    def _watermark(self, end: int) -> int:
        """Nothing earlier follows the first `end` rows; within a second, its start."""
        if self._times is None or not len(self._order):
            return NO_TIME
        if end == len(self._order):
            return int(self._times.max())
        now, following = (int(self._times[self._order[row]]) for row in (end - 1, end))
        second = following // _SECOND_US
        if now // _SECOND_US == second:
            return second * _SECOND_US
        stop = end + int(
            np.searchsorted(self._times[self._order[end:]] // _SECOND_US, second, side="right")
        )
        return int(self._times[self._order[end:stop]].min())

    def _last_rows_of_tasks(self) -> NDArray[np.bool_]:
        """Of each task, the last row of the request that ends last."""
        tasks = self._rows.requests.tasks
        last_of: dict[str, int] = {}
        for row in self._order[self._is_last[self._order]].tolist():
            last_of[tasks[self._rows.request[row]]] = row
        flags = np.zeros(len(self._rows), np.bool_)
        flags[list(last_of.values())] = True
        return flags

    def _batch(
        self, rows: NDArray[np.intp], context: NDArray[np.bool_], sequence: int, watermark_us: int
    ) -> RoutingBatch:
        source = self._rows
        distinct, local = np.unique(source.request[rows], return_inverse=True)
        flags = np.where(context, int(RowFlag.CONTEXT), 0)
        flags[~context & self._is_last[rows]] |= RowFlag.LAST_OF_REQUEST
        flags[~context & self._ends_task[rows]] |= RowFlag.LAST_OF_TASK
        requests = source.requests
        weights = source.weights[rows] if source.weights is not None and self._weight_bits else None
        return RoutingBatch(
            header=BatchHeader(
                node=self._identity.node,
                incarnation=self._identity.incarnation,
                sequence=sequence,
                model=source.model,
                revision=source.revision,
                experts=source.experts,
                top_k=source.ids.shape[2],
                layers=np.array(source.layers, np.uint16),
                watermark_us=watermark_us,
                engine=source.engine,
                rank_order=source.rank_order,
                id_space=source.id_space,
            ),
            requests=Requests(
                ids=tuple(requests.ids[row] for row in distinct),
                tasks=tuple(requests.tasks[row] for row in distinct),
                scenes=tuple(requests.scenes[row] for row in distinct),
                phase_starts=requests.phase_starts[distinct],
                cached_tokens=requests.cached_tokens[distinct],
            ),
            tokens=Tokens(
                request=local.astype(np.int32),
                position=source.position[rows],
                phase=source.phase[rows],
                flags=flags.astype(np.uint8),
                event_time_us=None if self._times is None else self._times[rows],
                pass_id=None if source.pass_id is None else source.pass_id[rows],
                step=None if source.step is None else source.step[rows],
            ),
            routes=Routes.from_ids(
                source.ids[rows],
                source.experts,
                ranked=source.rank_order is not RankOrder.UNKNOWN,
                weights=weights,
                weight_bits=self._weight_bits or 8,
            ),
        )


def parsed_rows(rows: ImportedRows, identity: ImportIdentity, notes: Iterable[str]) -> ParsedFile:
    """A file that was read as rows."""
    return ParsedFile(
        batches=RowBatches(rows, identity),
        rows=len(rows),
        requests=len(np.unique(rows.request)),
        suspicious=suspicious(rows),
        notes=tuple(notes),
    )


def _most_rows(rows: ImportedRows, weight_bits: int) -> int:
    """Rows whose batch stays below 1 MiB even if it did not compress at all."""
    layers, top_k = len(rows.layers), int(rows.ids.shape[2])
    wide = rows.experts > 256 or (len(rows) and int(rows.ids.max()) > 255)  # noqa: PLR2004 (bytes)
    bits = 8 * (2 if wide else 1) + weight_bits
    return max(1, BATCH_BYTES // (layers * top_k * bits // 8 + layers + _ROW_BYTES))


def _never_back(
    times: NDArray[np.int64], by_position: NDArray[np.intp], request: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Event times such that along each request's positions time never goes back."""
    ordered = times[by_position]
    begins = np.flatnonzero(np.append([True], request[1:] != request[:-1]))
    raised = np.empty_like(ordered)
    for begin, end in zip(begins, np.append(begins[1:], [len(ordered)]), strict=True):
        np.maximum.accumulate(ordered[begin:end], out=raised[begin:end])
    result = np.empty_like(times)
    result[by_position] = raised
    return result
