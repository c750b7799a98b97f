"""Micro-batches of a router trace, made into rows or into counts per step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch import NO_START
from moescope.core.vocabulary import Phase
from moescope.producers.importers.batching import RowBatches
from moescope.producers.importers.count_batches import CountBatches, CountPiece
from moescope.producers.importers.errors import RejectedLineError
from moescope.producers.importers.imported_rows import ImportedRequests, ImportedRows
from moescope.producers.importers.megatron_ranks import layers_of
from moescope.producers.importers.suspicion import suspicious

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.megatron_ranks import RouterName
    from moescope.producers.importers.report import Rejects

_ENGINE = "megatron-lm"
_STEPPING = frozenset({Phase.TRAIN, Phase.EVAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One micro-batch on one rank of a stage.

    Attributes:
        nth: Among those of its step and rank.
        ids: uint16 [T, L, k].
    """

    step: int
    rank: int
    nth: int
    file: Path
    line: int
    routers: tuple[RouterName, ...]
    ids: NDArray[np.uint16]

    @property
    def is_draft(self) -> bool:
        """Whether it is of multi-token-prediction heads."""
        return self.routers[0].head >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBatches:
    """Batches of some units, and what they carry."""

    batches: RowBatches | CountBatches
    rows: int
    requests: int
    suspicious: Mapping[str, int] = field(default_factory=dict)


def row_batches(
    units: Sequence[Unit],
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    *,
    first_sequence: int,
) -> MadeBatches | None:
    """Rows; each sequence of a micro-batch is a request.

    Args:
        units: Of one set of routers, in order.
        identity: Of the import.
        options: Of the format.
        rejects: Takes units that are no whole number of sequences.
        first_sequence: Number of the first batch.

    Returns:
        None when no unit can be used.
    """
    size = options["micro_batch_size"]
    columns: list[tuple[NDArray[Any], ...]] = []
    ids: list[NDArray[np.uint16]] = []
    names: list[str] = []
    for number, unit in enumerate(units):
        tokens = len(unit.ids)
        if tokens % size:
            error = RejectedLineError(
                "rows that are no whole number of sequences", f"{tokens} rows, {size} sequences"
            )
            rejects.add(unit.line, error, unit.file)
            continue
        place = np.arange(tokens)
        columns.append(
            (len(names) + place % size, place // size, np.full(tokens, unit.step),
             np.full(tokens, number))
        )  # fmt: skip
        ids.append(unit.ids)
        names += [
            f"step-{unit.step}-rank-{unit.rank}-batch-{unit.nth}-{row}" for row in range(size)
        ]
    if not columns:
        return None
    request, position, step, pass_id = (np.concatenate(part) for part in zip(*columns, strict=True))
    phase = Phase.DRAFT if units[0].is_draft else options["phase"]
    starts = np.full((len(names), len(Phase)), NO_START, np.int32)
    if phase is not Phase.DECODE:
        starts[:, phase] = 0
    rows = ImportedRows(
        model=options["model"],
        revision=options["revision"],
        engine=_ENGINE,
        experts=options["experts"],
        layers=layers_of(units[0].routers),
        requests=ImportedRequests(
            ids=tuple(names),
            tasks=tuple(names),
            scenes=(options["scene"],) * len(names),
            phase_starts=starts,
            cached_tokens=np.zeros(len(names), np.int32),
        ),
        request=request.astype(np.int32),
        position=position.astype(np.int32),
        phase=np.full(len(request), phase, np.uint8),
        ids=np.concatenate(ids),
        pass_id=pass_id.astype(np.int64),
        step=step.astype(np.int64) if phase in _STEPPING else None,
    )
    return MadeBatches(
        batches=RowBatches(rows, identity, first_sequence=first_sequence),
        rows=len(rows),
        requests=len(names),
        suspicious=suspicious(rows),
    )


def count_batches(
    units: Sequence[Unit],
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    *,
    first_sequence: int,
) -> MadeBatches:
    """Counts per step and rank; rows that gates would refuse are rejected here.

    Args:
        units: Of one set of routers, in order.
        identity: Of the import.
        options: Of the format.
        rejects: Takes rows with repeated ids, and ids beyond the experts.
        first_sequence: Number of the first batch.
    """
    experts = options["experts"]
    layers, top_k = units[0].ids.shape[1:]
    counts: dict[tuple[int, int], NDArray[np.int64]] = defaultdict(
        lambda: np.zeros((layers, experts), np.int64)
    )
    tokens: dict[tuple[int, int], int] = defaultdict(int)
    for unit in units:
        ordered = np.sort(unit.ids, axis=-1)
        is_sound = (ordered[..., -1] < experts).all(axis=1)
        is_sound &= (ordered[..., 1:] != ordered[..., :-1]).all(axis=(1, 2))
        if not is_sound.all():
            doubtful = f"{int((~is_sound).sum())} rows"
            error = RejectedLineError("rows with repeated or impossible ids", doubtful)
            rejects.add(unit.line, error, unit.file)
        key = unit.step, unit.rank
        cells = ordered[is_sound].astype(np.int64) + experts * np.arange(layers)[:, None]
        counts[key] += np.bincount(cells.reshape(-1), minlength=layers * experts).reshape(
            layers, experts
        )
        tokens[key] += int(is_sound.sum())
    phase = Phase.DRAFT if units[0].is_draft else options["phase"]
    pieces = [
        CountPiece(
            name=f"step-{step}-rank-{rank}",
            phase=phase,
            tokens=tokens[step, rank],
            counts=counts[step, rank].astype(np.uint32),
            step=step if phase in _STEPPING else -1,
        )
        for step, rank in sorted(counts)
        if tokens[step, rank]
    ]
    return MadeBatches(
        batches=CountBatches(
            pieces=pieces, identity=identity, model=options["model"],
            revision=options["revision"], engine=_ENGINE, scene=options["scene"],
            layers=layers_of(units[0].routers), experts=experts, top_k=top_k,
            first_sequence=first_sequence,
        ),
        rows=sum(piece.tokens for piece in pieces),
        requests=len(pieces),
    )  # fmt: skip
