"""Cuts imported counts into batches of counts fidelity."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.batch import NO_START, BatchHeader, Requests, RoutingBatch, TokenBlocks
from moescope.core.vocabulary import Fidelity, IdSpace, Phase, RowFlag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from moescope.producers.importers.identity import ImportIdentity

LARGEST_TOKENS = 2**31 - 1
BATCH_BYTES = 1 << 20
_BYTES_PER_COUNT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CountPiece:
    """Tokens per expert of tokens that belong together, in no known order.

    Attributes:
        name: Its request and task.
        tokens: How many.
        counts: uint32 [L, E].
        step: Optimizer step, −1 when there is none.
    """

    name: str
    phase: Phase
    tokens: int
    counts: NDArray[np.uint32]
    step: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBatches:
    """Batches of pieces of one shape, in order. A piece is a request and a task of its own.

    No token windows form of them: the start of their phase is not known, or said to be where they
    end.

    Attributes:
        layers: Decoder-layer indices, ascending.
        first_sequence: Number of the first batch.
    """

    pieces: Sequence[CountPiece]
    identity: ImportIdentity
    model: str
    revision: str
    engine: str
    scene: str
    layers: tuple[int, ...]
    experts: int
    top_k: int
    id_space: IdSpace = IdSpace.LOGICAL
    first_sequence: int = 0

    def __iter__(self) -> Iterator[RoutingBatch]:
        """The batches; the same each time."""
        for number, (first, end) in enumerate(self._cuts(), start=self.first_sequence):
            yield self._batch(self.pieces[first:end], number)

    def __len__(self) -> int:
        """Number of batches."""
        return sum(1 for _ in self._cuts())

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """At most 1 MiB, and pieces with and without steps apart."""
        most = max(1, BATCH_BYTES // (len(self.layers) * self.experts * _BYTES_PER_COUNT))
        begin = 0
        borders = [
            place
            for place, (one, other) in enumerate(pairwise(self.pieces), start=1)
            if (one.step < 0) != (other.step < 0)
        ]
        for end in (*borders, len(self.pieces)):
            for first in range(begin, end, most):
                yield first, min(first + most, end)
            begin = end

    def _batch(self, pieces: Sequence[CountPiece], sequence: int) -> RoutingBatch:
        size = len(pieces)
        names = tuple(piece.name for piece in pieces)
        starts = np.full((size, len(Phase)), NO_START, np.int32)
        tokens = np.array([piece.tokens for piece in pieces], np.int32)
        phases = np.array([piece.phase for piece in pieces], np.uint8)
        for phase in (Phase.PREFILL, Phase.TRAIN):
            starts[phases == phase, phase] = tokens[phases == phase]
        steps = np.array([piece.step for piece in pieces], np.int64)
        return RoutingBatch(
            header=BatchHeader(
                node=self.identity.node,
                incarnation=self.identity.incarnation,
                sequence=sequence,
                model=self.model,
                revision=self.revision,
                experts=self.experts,
                top_k=self.top_k,
                layers=np.array(self.layers, np.uint16),
                engine=self.engine,
                fidelity=Fidelity.COUNTS,
                id_space=self.id_space,
            ),
            requests=Requests(
                ids=names,
                tasks=names,
                scenes=(self.scene,) * size,
                phase_starts=starts,
                cached_tokens=np.zeros(size, np.int32),
            ),
            token_blocks=TokenBlocks(
                request=np.arange(size, dtype=np.int32),
                phase=phases,
                flags=np.full(size, RowFlag.LAST_OF_REQUEST | RowFlag.LAST_OF_TASK, np.uint8),
                start_position=np.zeros(size, np.int32),
                tokens=tokens,
                counts=np.stack([piece.counts for piece in pieces]),
                step=None if (steps < 0).any() else steps,
            ),
        )
