"""Megatron-LM's router traces: the ids of each token of each step, rank by rank."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.vocabulary import Phase
from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.format import ImportFormat, ParsedFile
from moescope.producers.importers.megatron_ranks import (
    STAGE_STARTS,
    WORLD_SIZE,
    RouterName,
    Stages,
)
from moescope.producers.importers.megatron_trace_records import (
    FILES,
    TraceRecord,
    look,
    trace_records,
)
from moescope.producers.importers.megatron_units import Unit, count_batches, row_batches
from moescope.producers.importers.options import (
    EXPERTS,
    IMPORTABLE_PHASES,
    ROW_OPTIONS,
    Option,
    choice,
    integer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.report import Rejects

OPTIONS = (
    EXPERTS,
    Option(
        "micro_batch_size",
        integer(1, 2**20),
        None,
        "Sequences of a micro-batch: rows go position by position through them. Without it nothing "
        "tells which rows are neighbours, and counts per step are imported.",
    ),
    Option("phase", choice(IMPORTABLE_PHASES), Phase.TRAIN, "What the engine was doing."),
    STAGE_STARTS,
    WORLD_SIZE,
    *ROW_OPTIONS,
)


@dataclass(slots=True)
class _Pieces:
    """Records of one micro-batch of one rank of a stage, by router."""

    first: TraceRecord
    by_router: dict[RouterName, NDArray[np.uint16]] = field(default_factory=dict)


def parse(
    path: Path,
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    on_line: Callable[[int], None],
) -> ParsedFile:
    """Read a trace, or those of all ranks; see `docs/reference/importers/megatron-trace.md`.

    Raises:
        ImportFormatError: Nothing can be used, or two files hold one step of one rank.
    """
    limit = options["max_memory_mib"] << 20
    records = list(trace_records(path, rejects, on_line, limit))
    notes: list[str] = []
    units = _units(records, options, rejects, path, notes)
    if not units:
        raise ImportFormatError(
            f"No micro-batch of {path} can be imported.",
            why=str(rejects.first[0]) if rejects.first else "It has no records.",
            next_step="Give the traces of all ranks (their folder), and check -o stage_starts=…",
        )
    as_rows = options["micro_batch_size"] is not None
    make = row_batches if as_rows else count_batches
    parts = []
    suspicious: Counter[str] = Counter()
    sequence = rows = requests = 0
    for is_draft in (False, True):
        some = [unit for unit in units if unit.is_draft is is_draft]
        made = make(some, identity, options, rejects, first_sequence=sequence) if some else None
        if made is not None:
            parts.append(made.batches)
            sequence += len(made.batches)
            rows, requests = rows + made.rows, requests + made.requests
            suspicious.update(made.suspicious)
    if not rows:
        raise ImportFormatError(
            f"No token of {path} can be imported.",
            why=str(rejects.first[0]) if rejects.first else "",
            next_step="Check -o micro_batch_size=… and -o experts=…",
        )
    if not as_rows:
        notes.append("Counts per step were imported: give -o micro_batch_size=… for rows.")
    return ParsedFile(
        batches=_Chained(parts),
        rows=rows,
        requests=requests,
        suspicious=suspicious,
        notes=tuple(notes),
    )


class _Chained:
    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._parts)


def _units(
    records: list[TraceRecord],
    options: Mapping[str, Any],
    rejects: Rejects,
    path: Path,
    notes: list[str],
) -> list[Unit]:
    """Complete micro-batches in order of steps; repeated ones left out."""
    highest = max((record.rank for record in records), default=0)
    stages = Stages.of(options, highest, path)
    occurrences: Counter[tuple[int, int, RouterName]] = Counter()
    pieces: dict[tuple[bool, int, int, int], _Pieces] = {}
    for record in records:
        nth = occurrences[record.step, record.rank, record.router]
        occurrences[record.step, record.rank, record.router] += 1
        try:
            within, router = stages.place(record.rank, record.router)
            key = router.head >= 0, record.step, within, nth
            found = pieces.setdefault(key, _Pieces(record))
            if router in found.by_router:
                raise RejectedLineError(
                    "the same layer of another rank", "are ranks of several stages meant?"
                )
            found.by_router[router] = record.ids
        except RejectedLineError as error:
            rejects.add(record.line, error, record.file)
    routers = {
        is_draft: tuple(
            sorted(
                {router for key, one in pieces.items() if key[0] is is_draft
                 for router in one.by_router},
                key=lambda router: (router.head, router.layer),
            )
        )
        for is_draft in (False, True)
    }  # fmt: skip
    units = []
    for (is_draft, step, within, nth), one in sorted(pieces.items(), key=lambda item: item[0]):
        try:
            ids = _stacked(one, routers[is_draft])
        except RejectedLineError as error:
            rejects.add(one.first.line, error, one.first.file)
            continue
        units.append(
            Unit(
                step=step, rank=within, nth=nth, line=one.first.line, file=one.first.file,
                routers=routers[is_draft], ids=ids,
            )
        )  # fmt: skip
    return _distinct(_of_one_k(units, rejects), notes)


def _stacked(one: _Pieces, routers: tuple[RouterName, ...]) -> NDArray[np.uint16]:
    """Ids [T, L, k] of a micro-batch."""
    missing = [router.layer for router in routers if router not in one.by_router]
    where = f"step {one.first.step}, rank {one.first.rank}"
    if missing:
        raise RejectedLineError(
            "a micro-batch without all layers", f"{where}: no layer {missing[0]}"
        )
    parts = [one.by_router[router] for router in routers]
    if len({part.shape for part in parts}) > 1:
        raise RejectedLineError("layers with different numbers of tokens or experts", where)
    return np.stack(parts, axis=1)


def _of_one_k(units: list[Unit], rejects: Rejects) -> list[Unit]:
    kept = []
    for unit in units:
        if unit.ids.shape[2] != units[0].ids.shape[2]:
            error = RejectedLineError("another top-k than the first record", str(unit.ids.shape[2]))
            rejects.add(unit.line, error, unit.file)
        else:
            kept.append(unit)
    return kept


def _distinct(units: list[Unit], notes: list[str]) -> list[Unit]:
    """Units without recomputed ones, and without ranks that saw the same tokens as another."""
    seen: set[tuple[int, int, bool, bytes]] = set()
    first_passes: list[Unit] = []
    of_rank: dict[int, Any] = defaultdict(hashlib.sha256)
    recomputed = 0
    for unit in units:
        content = hashlib.sha256(unit.ids.tobytes()).digest()
        key = unit.step, unit.rank, unit.is_draft, content
        if key in seen:
            recomputed += len(unit.ids)
            continue
        seen.add(key)
        first_passes.append(unit)
        of_rank[unit.rank].update(unit.step.to_bytes(8, "little") + content)
    if recomputed:
        notes.append(f"{recomputed} rows of recomputed forward passes were left out.")
    first_of: dict[bytes, int] = {}
    for rank, digest in of_rank.items():
        first_of.setdefault(digest.digest(), rank)
    kept = set(first_of.values())
    if len(kept) < len(of_rank):
        notes.append(
            f"Ranks {sorted(set(of_rank) - kept)} repeat what others saw, and were left out."
        )
    return [unit for unit in first_passes if unit.rank in kept]


MEGATRON_TRACE = ImportFormat(
    "megatron-trace",
    "Router traces of Megatron-LM; a folder of them is one run.",
    OPTIONS,
    parse,
    FILES,
    look,
)
