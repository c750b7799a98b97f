"""What a plugin recorded, read plainly from its batch log, and what a model's weights say."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from moescope.core.batchlog import BatchLogReader, partition_names
from moescope.core.quantise import weights_of
from moescope.core.vocabulary import Phase, RowFlag
from moescope.core.wire import decode_batch
from moescope.producers.agent import Agent
from moescope.producers.waiting import HELD_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.core.batch import BatchHeader, RoutingBatch


class RecordedRow(NamedTuple):
    """One token.

    Attributes:
        expert_ids: By layer.
        top1: By layer, or None where rank order is not known.
        weights: By layer, in the order of the ids, or None.
    """

    position: int
    phase: Phase
    flags: RowFlag
    expert_ids: NDArray[Any]
    top1: NDArray[Any] | None
    weights: NDArray[Any] | None
    token_id: int | None
    pass_id: int | None
    expert_map_version: int


@dataclass
class RecordedRequest:
    """One request, its rows in the order in which they came."""

    prompt_tokens: int
    cached_tokens: int
    task: str
    scene: str
    rows: list[RecordedRow]
    has_ended: bool = False

    def countable(self) -> list[RecordedRow]:
        """Rows of health: neither recomputed nor drafts."""
        return [
            row
            for row in self.rows
            if not row.flags & RowFlag.RECOMPUTED and row.phase is not Phase.DRAFT
        ]


@dataclass
class Recorded:
    """All of a ring folder."""

    headers: list[BatchHeader]
    requests: dict[str, RecordedRequest]


def outwait_passes() -> None:
    """Sleep until an idle engine has recorded its last passes: those that wait for others.

    Its thread looks once in `HELD_SECONDS` for passes that have waited for as long.
    """
    time.sleep(3 * HELD_SECONDS)


def recorded(ring: Path, log: Path) -> Recorded:
    """Ship what a ring folder holds to a log, and read all of that."""
    found = Recorded([], {})
    for batch in _shipped(ring, log):
        _read(batch, found)
    return found


def recorded_by_node(ring: Path, log: Path) -> dict[str, Recorded]:
    """The same, apart for each node: an engine with several producers has several."""
    found: dict[str, Recorded] = {}
    for batch in _shipped(ring, log):
        _read(batch, found.setdefault(batch.header.node, Recorded([], {})))
    return found


def _shipped(ring: Path, log: Path) -> Iterator[RoutingBatch]:
    with Agent(ring, log) as agent:
        agent.drain()
    for partition in partition_names(log):
        with BatchLogReader(log, partition) as reader:
            found = reader.read(0)
            while found.records:
                yield from (decode_batch(record.payload) for record in found.records)
                found = reader.read(found.next_offset)


def _read(batch: RoutingBatch, found: Recorded) -> None:
    found.headers.append(batch.header)
    tokens, routes, requests = batch.tokens, batch.routes, batch.requests
    if tokens is None or routes is None:
        return
    weights = None if routes.weights is None else weights_of(routes.weights)
    for row in range(len(tokens)):
        index = int(tokens.request[row])
        request = found.requests.setdefault(
            requests.ids[index],
            RecordedRequest(
                int(requests.phase_starts[index, Phase.DECODE]),
                int(requests.cached_tokens[index]),
                requests.tasks[index], requests.scenes[index], [],
            ),
        )  # fmt: skip
        flags = RowFlag(int(tokens.flags[row]))
        request.has_ended |= bool(flags & RowFlag.LAST_OF_REQUEST)
        if flags & RowFlag.CONTEXT:
            continue
        request.rows.append(
            RecordedRow(
                int(tokens.position[row]), Phase(int(tokens.phase[row])), flags,
                routes.expert_ids[row], None if routes.top1 is None else routes.top1[:, row],
                None if weights is None else weights[:, :, row],
                None if tokens.token_id is None else int(tokens.token_id[row]),
                None if tokens.pass_id is None else int(tokens.pass_id[row]),
                batch.header.expert_map_version,
            )
        )  # fmt: skip
