"""From a node's rows to routing batches: grouped by request, context rows, flags, numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.batch import (
    NO_START,
    BatchHeader,
    DropCounters,
    Requests,
    Routes,
    RoutingBatch,
    Tokens,
)
from moescope.core.vocabulary import Phase, RankOrder, RowFlag, ScoreKind
from moescope.producers.simulator.content import RowRoutes
from moescope.producers.simulator.engine import EngineRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.producers.simulator.model import ModelSpec
    from moescope.producers.simulator.requests import RequestTable

CONTEXT_ROWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Routed:
    """Rows with their routes, ordered by request and position."""

    rows: EngineRows
    routes: RowRoutes
    context: NDArray[np.bool_]

    def take(self, index: NDArray[np.intp]) -> _Routed:
        rows, routes = self.rows, self.routes
        return _Routed(
            rows=EngineRows(
                request=rows.request[index],
                position=rows.position[index],
                phase=rows.phase[index],
                event_time_us=rows.event_time_us[index],
                pass_id=rows.pass_id[index],
                step=None if rows.step is None else rows.step[index],
            ),
            routes=RowRoutes(
                ids=routes.ids[index],
                entropy=None if routes.entropy is None else routes.entropy[index],
            ),
            context=self.context[index],
        )

    def followed_by(self, other: _Routed) -> _Routed:
        entropies = [
            part.routes.entropy for part in (self, other) if part.routes.entropy is not None
        ]
        return _Routed(
            rows=self.rows.followed_by(other.rows),
            routes=RowRoutes(
                ids=np.concatenate([self.routes.ids, other.routes.ids]),
                entropy=np.concatenate(entropies) if entropies else None,
            ),
            context=np.concatenate([self.context, other.context]),
        )


class BatchBuilder:
    """Numbers the batches of one node and keeps the context rows of its open requests."""

    def __init__(self, model: ModelSpec, table: RequestTable, node: str, incarnation: int) -> None:
        self._model = model
        self._table = table
        self._node = node
        self._incarnation = incarnation
        self._sequence = 0
        self._carried: _Routed | None = None

    def heartbeat(
        self, *, watermark_us: int, clock_us: int, drops: DropCounters | None = None
    ) -> RoutingBatch:
        """A batch that says only that the node lives."""
        return RoutingBatch(header=self._header(watermark_us, clock_us, drops))

    def batch(
        self,
        rows: EngineRows,
        routes: RowRoutes,
        *,
        watermark_us: int,
        clock_us: int,
        drops: DropCounters | None = None,
    ) -> RoutingBatch:
        """The next batch.

        Args:
            rows: At most a second of rows, in order of time.
            routes: Their routes.
            watermark_us: Nothing earlier follows.
            clock_us: The node's clock.
            drops: What was lost since the previous batch.
        """
        new = _Routed(rows=rows, routes=routes, context=np.zeros(len(rows), np.bool_))
        carried = self._carried
        if carried is not None:
            continuing = np.isin(carried.rows.request, rows.request)
            others = carried.take(np.nonzero(~continuing)[0])
            new = carried.take(np.nonzero(continuing)[0]).followed_by(new)
        ordered = new.take(np.lexsort((new.rows.position, new.rows.request)))
        kept = _last_rows_of_open_requests(ordered, self._table)
        self._carried = kept if carried is None else others.followed_by(kept)
        return self._assemble(ordered, self._header(watermark_us, clock_us, drops))

    def forget(self, requests: list[int]) -> None:
        """Let go of the context rows of requests that ended without a last row."""
        if self._carried is not None and requests:
            gone = np.isin(self._carried.rows.request, requests)
            if gone.any():
                self._carried = self._carried.take(np.nonzero(~gone)[0])

    def _header(self, watermark_us: int, clock_us: int, drops: DropCounters | None) -> BatchHeader:
        model = self._model
        self._sequence += 1
        return BatchHeader(
            node=self._node,
            incarnation=self._incarnation,
            sequence=self._sequence - 1,
            model=model.name,
            revision=model.revision,
            experts=model.experts,
            top_k=model.top_k,
            layers=np.array(model.layers, np.uint16),
            watermark_us=watermark_us,
            encoded_at_us=clock_us,
            engine="moescope-simulator",
            score_kind=ScoreKind.SOFTMAX,
            rank_order=RankOrder.SELECTION_SCORE,
            drops=drops or DropCounters(),
        )

    def _assemble(self, ordered: _Routed, header: BatchHeader) -> RoutingBatch:
        rows, table = ordered.rows, self._table
        distinct, local = np.unique(rows.request, return_inverse=True)
        plans = [table.plans[index] for index in distinct]
        starts = np.full((len(distinct), len(Phase)), NO_START, np.int32)
        for place, plan in enumerate(plans):
            starts[place, plan.first_phase] = 0
            if plan.first_phase == Phase.PREFILL:
                starts[place, Phase.DECODE] = plan.prompt_tokens
        last = ~ordered.context & (rows.position == table.column("last_position")[rows.request])
        flags = table.column("flags")[rows.request]
        flags[ordered.context] |= RowFlag.CONTEXT
        flags[last] |= RowFlag.LAST_OF_REQUEST
        flags[last & table.column("last_of_task")[rows.request]] |= RowFlag.LAST_OF_TASK
        return RoutingBatch(
            header=header,
            requests=Requests(
                ids=tuple(plan.id for plan in plans),
                tasks=tuple(plan.task for plan in plans),
                scenes=tuple(plan.scene for plan in plans),
                phase_starts=starts,
                cached_tokens=table.column("cached_tokens")[distinct].astype(np.int32),
            ),
            tokens=Tokens(
                request=local.astype(np.int32),
                position=rows.position.astype(np.int32),
                phase=rows.phase,
                flags=flags.astype(np.uint8),
                event_time_us=rows.event_time_us,
                pass_id=rows.pass_id,
                step=rows.step,
            ),
            routes=Routes.from_ids(
                ordered.routes.ids,
                self._model.experts,
                ranked=True,
                entropy=ordered.routes.entropy,
            ),
        )


def _last_rows_of_open_requests(ordered: _Routed, table: RequestTable) -> _Routed:
    """The last two rows of each request that goes on, marked as context."""
    request = ordered.rows.request
    place_from_end = np.arange(len(request))
    ends = np.nonzero(np.append(request[1:] != request[:-1], [True]))[0]
    place_from_end = np.repeat(ends, np.diff(ends, prepend=-1)) - place_from_end
    last_position = ordered.rows.position[ends] >= table.column("last_position")[request[ends]]
    closed = np.repeat(last_position, np.diff(ends, prepend=-1))
    kept = ordered.take(np.nonzero((place_from_end < CONTEXT_ROWS) & ~closed)[0])
    return _Routed(rows=kept.rows, routes=kept.routes, context=np.ones(len(kept.rows), np.bool_))
