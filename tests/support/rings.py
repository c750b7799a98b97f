"""Recorders and agents in tests: a tiny model, rows that can be told apart, the log read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moescope.core.batchlog import BatchLogReader, partition_names
from moescope.core.vocabulary import RowFlag
from moescope.core.wire import decode_batch
from moescope.producers import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from moescope.core.batch import RoutingBatch

LAYERS = (1, 3)
EXPERTS = 8
TOP_K = 2
SMALL_RING = 512 * 1024
START_US = 1_700_000_000_000_000


def small_recorder(directory: Path, **settings: Any) -> Recorder:
    """A recorder of a model with two MoE layers of eight experts."""
    defaults: dict[str, Any] = {
        "model": "tiny",
        "revision": "r1",
        "layers": LAYERS,
        "experts": EXPERTS,
        "top_k": TOP_K,
        "directory": directory,
        "node": "node-a",
        "ring_bytes": SMALL_RING,
        "token_id_kind": "plain",
    }
    return Recorder(**(defaults | settings))


def ids_of(serials: Iterable[int]) -> np.ndarray:
    """Expert ids [T, 2, 2] that depend on each row's serial number."""
    serial = np.array(list(serials))
    first = np.stack([serial % EXPERTS, (serial // EXPERTS) % EXPERTS], axis=1)
    return np.stack([first, (first + 1) % EXPERTS], axis=2)


class ShippedRow(NamedTuple):
    """One token of a batch log, as plainly as possible."""

    request: str
    task: str
    scene: str
    position: int
    phase: int
    flags: int
    event_time_us: int
    serial: int
    expert_ids: tuple[tuple[int, ...], ...]
    batch: int

    @property
    def is_context(self) -> bool:
        """Whether the row is a repetition."""
        return bool(self.flags & RowFlag.CONTEXT)


class Logged(NamedTuple):
    """A batch with the ring range of its record."""

    batch: RoutingBatch
    ring_from: int
    ring_to: int
    payload_bytes: int


def logged(root: Path, node: str = "node-a") -> list[Logged]:
    """Every batch that a partition holds, in order; none if there is no partition."""
    if node not in partition_names(root):
        return []
    with BatchLogReader(root, node) as reader:
        offset = reader.first_offset()
        found: list[Logged] = []
        while True:
            result = reader.read(offset)
            if not result.records:
                return found
            for record in result.records:
                batch = decode_batch(record.payload)
                found.append(Logged(batch, record.ring_from, record.ring_to, len(record.payload)))
            offset = result.next_offset


def rows_of(batches: Iterable[Logged]) -> Iterator[ShippedRow]:
    """All rows of batches, context rows too."""
    for number, (batch, *_) in enumerate(batches):
        if batch.tokens is None or batch.routes is None:
            continue
        tokens, ids = batch.tokens, batch.routes.expert_ids
        for row in range(len(tokens)):
            request = int(tokens.request[row])
            yield ShippedRow(
                batch.requests.ids[request],
                batch.requests.tasks[request],
                batch.requests.scenes[request],
                int(tokens.position[row]),
                int(tokens.phase[row]),
                int(tokens.flags[row]),
                0 if tokens.event_time_us is None else int(tokens.event_time_us[row]),
                -1 if tokens.token_id is None else int(tokens.token_id[row]),
                tuple(tuple(sorted(layer)) for layer in ids[row].tolist()),
                number,
            )


def lost_rows(batches: Iterable[Logged]) -> int:
    """Rows that batch headers report as overwritten in the ring."""
    return sum(batch.header.drops.ring_rows for batch, *_ in batches)


def assert_dense(batches: list[Logged]) -> None:
    """Per incarnation, numbers run from 0 without a hole, and ring ranges join."""
    expected: dict[int, tuple[int, int]] = {}
    for batch, ring_from, ring_to, _ in batches:
        sequence, position = expected.get(batch.header.incarnation, (0, 0))
        assert batch.header.sequence == sequence
        assert ring_from == position
        expected[batch.header.incarnation] = (sequence + 1, ring_to)
