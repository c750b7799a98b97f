"""What a simulation produced, and what the same rows would weigh as JSON lines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.core.vocabulary import UNCOUNTED_FLAGS, Phase

if TYPE_CHECKING:
    from moescope.core.batch import RoutingBatch

_SAMPLE_EVERY = 50
_SAMPLE_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationTotals:
    """Sums over a simulation.

    Attributes:
        tokens: Rows that count (no context rows, padding, recomputed rows).
        assignments: (token, layer, expert) selections of these rows.
        rows: All rows written. requests: Requests with a row. batches: Heartbeats included.
        lost_rows: Dropped before they were written.
        wire_bytes: Encoded batches.
        jsonl_equivalent_bytes: One JSON line per counted row and layer; estimated from
            rows that were rendered.
        seconds: Event time simulated.
        nodes: Names of the fleet's nodes.
    """

    tokens: int = 0
    assignments: int = 0
    rows: int = 0
    requests: int = 0
    batches: int = 0
    lost_rows: int = 0
    wire_bytes: int = 0
    jsonl_equivalent_bytes: int = 0
    seconds: int = 0
    nodes: tuple[str, ...] = ()


class Tally:
    """Adds up batches as they are written."""

    def __init__(self) -> None:
        self.tokens = self.rows = self.batches = self.lost_rows = self.wire_bytes = 0
        self._sampled_lines = self._sampled_bytes = 0

    def add(self, batch: RoutingBatch, wire_bytes: int) -> None:
        """Take in one batch and its encoded size."""
        self.batches += 1
        self.wire_bytes += wire_bytes
        self.lost_rows += batch.header.drops.lost_rows
        if batch.tokens is None:
            return
        self.rows += len(batch.tokens)
        self.tokens += int((batch.tokens.flags & UNCOUNTED_FLAGS == 0).sum())
        if self.batches % _SAMPLE_EVERY == 1:
            lines = json_lines(batch, _SAMPLE_ROWS)
            self._sampled_lines += len(lines)
            self._sampled_bytes += sum(len(line) + 1 for line in lines)

    def totals(
        self, *, layers: int, top_k: int, requests: int, seconds: int, nodes: tuple[str, ...]
    ) -> SimulationTotals:
        """The sums so far."""
        line_bytes = self._sampled_bytes / max(self._sampled_lines, 1)
        return SimulationTotals(
            tokens=self.tokens,
            assignments=self.tokens * layers * top_k,
            rows=self.rows,
            requests=requests,
            batches=self.batches,
            lost_rows=self.lost_rows,
            wire_bytes=self.wire_bytes,
            jsonl_equivalent_bytes=round(line_bytes * self.tokens * layers),
            seconds=seconds,
            nodes=nodes,
        )


def json_lines(batch: RoutingBatch, rows: int) -> list[bytes]:
    """The first rows of a batch as JSON, one line per token and layer."""
    tokens, routes = batch.tokens, batch.routes
    if tokens is None or routes is None:
        return []
    ids = routes.expert_ids[:rows].tolist()
    requests, times = batch.requests, tokens.event_time_us
    return [
        json.dumps(
            {
                "node": batch.header.node,
                "request": requests.ids[tokens.request[row]],
                "task": requests.tasks[tokens.request[row]],
                "scene": requests.scenes[tokens.request[row]],
                "position": int(tokens.position[row]),
                "phase": Phase(tokens.phase[row]).name.lower(),
                "time": None if times is None else int(times[row]),
                "layer": int(layer),
                "experts": experts,
            },
            separators=(",", ":"),
        ).encode()
        for row, layers in enumerate(ids)
        for layer, experts in zip(batch.header.layers, layers, strict=True)
    ]
