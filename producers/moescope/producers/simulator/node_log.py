"""One simulated node's way from computed rows to its partition of the batch log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.core.batch import DropCounters
from moescope.core.wire import encode_batch
from moescope.producers.simulator.content import route_rows
from moescope.producers.simulator.faults import add_fault_rows, drop_oldest, spoil_ids
from moescope.producers.simulator.incidents import (
    ClockSkew,
    DroppedRows,
    EngineFault,
    SilentNode,
    SlowNode,
)
from moescope.producers.simulator.scenario import SECOND_US

if TYPE_CHECKING:
    from moescope.core.batch import RoutingBatch
    from moescope.core.batchlog import BatchLogWriter
    from moescope.producers.simulator.engine import EngineRows
    from moescope.producers.simulator.grouping import BatchBuilder
    from moescope.producers.simulator.requests import RequestTable
    from moescope.producers.simulator.router import Router
    from moescope.producers.simulator.scenario import Planted, Scenario
    from moescope.producers.simulator.totals import Tally

_BATCH_BYTES = 1 << 20
_ROW_BYTES = 48
"""Generous bound of a row's columns other than its routes, before compression."""
_ENCODING_US = 20_000
_SHIPPING_US = 5_000


def most_rows(scenario: Scenario) -> int:
    """Rows whose batch stays below 1 MiB even if it did not compress at all."""
    model = scenario.model
    per_assignment = 1 if model.experts <= 256 else 2  # noqa: PLR2004 (ids of one byte)
    route_bytes = len(model.layers) * (model.top_k * per_assignment + scenario.record_entropy)
    return max(1, _BATCH_BYTES // (route_bytes + _ROW_BYTES))


@dataclass(frozen=True, slots=True)
class SharedState:
    """What all nodes of a simulation have in common."""

    scenario: Scenario
    planted: tuple[Planted, ...]
    table: RequestTable
    tally: Tally


class NodeLog:
    """Writes one node's seconds, under the incidents that concern it."""

    def __init__(
        self,
        node: int,
        shared: SharedState,
        builder: BatchBuilder,
        writer: BatchLogWriter,
    ) -> None:
        self._node = node
        self._planted = shared.planted
        self._table = shared.table
        self._tally = shared.tally
        self._builder = builder
        self._writer = writer
        self._most_rows = most_rows(shared.scenario)
        self._lost = 0
        self._last_append_us = 0

    def second(self, rows: EngineRows, router: Router, second_us: int) -> None:
        """Write the rows of the second that starts at a time, or a heartbeat."""
        active = [
            item.incident
            for item in self._planted
            if item.incident.effect and item.is_active(self._node, second_us)
        ]
        delay_us = skew_us = 0
        silent = False
        for incident in active:
            if isinstance(incident, DroppedRows):
                rows, lost = drop_oldest(rows, incident.share)
                self._lost += lost
            elif isinstance(incident, SlowNode):
                delay_us = round(incident.delay_s * SECOND_US)
            elif isinstance(incident, ClockSkew):
                skew_us = round(incident.offset_s * SECOND_US)
            elif isinstance(incident, SilentNode):
                silent = True
        if silent:
            self._lost += len(rows)
            return
        faults = [incident for incident in active if isinstance(incident, EngineFault)]
        for fault in faults:
            rows = add_fault_rows(rows, fault, self._table, self._node, second_us)
        end_us = second_us + SECOND_US
        append_us = max(end_us + delay_us + _ENCODING_US + _SHIPPING_US, self._last_append_us)
        clock_us = append_us - _SHIPPING_US + skew_us
        if not len(rows):
            watermark_us = end_us + skew_us
            heartbeat = self._builder.heartbeat(
                watermark_us=watermark_us, clock_us=clock_us, drops=self._drops()
            )
            self._append(heartbeat, append_us)
        for first in range(0, len(rows), self._most_rows):
            self._write_part(rows, first, faults, router, (end_us, clock_us, append_us, skew_us))
        self._last_append_us = append_us

    def _write_part(
        self,
        rows: EngineRows,
        first: int,
        faults: list[EngineFault],
        router: Router,
        times: tuple[int, int, int, int],
    ) -> None:
        end_us, clock_us, append_us, skew_us = times
        after = first + self._most_rows
        part = rows.part(first, after)
        routes = route_rows(router, self._table, part.request, part.position)
        for fault in faults:
            spoil_ids(routes.ids, fault, part)
        next_us = int(rows.event_time_us[after]) if after < len(rows) else end_us
        batch = self._builder.batch(
            part.delayed(skew_us),
            routes,
            watermark_us=next_us + skew_us,
            clock_us=clock_us,
            drops=self._drops(),
        )
        self._append(batch, append_us)

    def forget(self, requests: list[int]) -> None:
        """Requests that ended: nothing of them needs to be repeated as context."""
        self._builder.forget(requests)

    def close(self) -> None:
        """Seal the partition: nothing follows."""
        self._writer.seal()
        self._writer.close()

    def _drops(self) -> DropCounters:
        lost, self._lost = self._lost, 0
        return DropCounters(ring_rows=lost)

    def _append(self, batch: RoutingBatch, append_us: int) -> None:
        payload = encode_batch(batch)
        self._writer.append(payload, append_time_us=append_us)
        self._tally.add(batch, len(payload))
