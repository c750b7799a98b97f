"""Megatron-LM's tokens per expert of each step, rank by rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch_checks import MAX_TOP_K
from moescope.core.vocabulary import Phase
from moescope.producers.importers.count_batches import LARGEST_TOKENS, CountBatches, CountPiece
from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.format import ImportFormat, ParsedFile
from moescope.producers.importers.json_values import parse_object
from moescope.producers.importers.looking import look_at
from moescope.producers.importers.megatron_count_lines import (
    CountLine,
    check_ranks,
    count_line,
    counts_of,
)
from moescope.producers.importers.megatron_ranks import (
    LARGEST_RANK,
    STAGE_STARTS,
    WORLD_SIZE,
    RouterName,
    Stages,
    layers_of,
    read_records,
)
from moescope.producers.importers.options import (
    EXPERTS,
    ROW_OPTIONS,
    Option,
    choice,
    integer,
)
from moescope.producers.importers.source_files import files_of_run, read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.report import Rejects

FILES = "rank*.jsonl*"
_LINE_BYTES = 512
"""Of a line without its counts."""
_WORKING_COPIES = 3
"""While steps are put together, about so many copies of the counts are in memory."""
OPTIONS = (
    EXPERTS,
    Option(
        "top_k",
        integer(1, MAX_TOP_K),
        None,
        "Experts per token (--moe-router-topk); counts do not tell it.",
        example="8",
    ),
    Option(
        "expert_parallel",
        integer(1, LARGEST_RANK),
        1,
        "Ranks that share the experts of a layer: each counts its own only.",
    ),
    Option(
        "expert_tensor_parallel",
        integer(1, LARGEST_RANK),
        1,
        "Ranks that share each expert: all of them count the same.",
    ),
    Option(
        "tokens",
        integer(1, LARGEST_TOKENS),
        None,
        "Tokens of a step in one group of expert-parallel ranks. By default the total of a layer / "
        "k; given, layers whose counts do not add up to it are suspicious, not rejected.",
    ),
    Option(
        "recomputed",
        choice({"yes": True, "no": False}),
        False,  # noqa: FBT003 (a default)
        "yes counts each micro-batch once that activation recomputation made the run count twice.",
    ),
    STAGE_STARTS,
    WORLD_SIZE,
    *ROW_OPTIONS,
)


@dataclass(slots=True)
class _Step:
    """Counts of one step in one group of expert-parallel ranks.

    Attributes:
        parts: Counts of a rank's own experts, by router and place in the group.
    """

    first: CountLine
    parts: dict[tuple[RouterName, int], NDArray[np.int64]] = field(default_factory=dict)


def parse(
    path: Path,
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    on_line: Callable[[int], None],
) -> ParsedFile:
    """Read a rank's file, or those of all; see `docs/reference/importers/megatron-counts.md`.

    Raises:
        ImportFormatError: Nothing can be used, two files are of one rank, or the counts need more
            memory than allowed.
    """
    lines = _lines(path, options, rejects, on_line)
    notes: list[str] = []
    suspicious: Counter[str] = Counter()
    _look_for_recomputation(lines, options, suspicious, notes)
    steps = _steps(lines, options, rejects, path)
    parts: list[CountBatches] = []
    for is_draft in (False, True):
        some = {key: step for key, step in steps.items() if key[0] is is_draft}
        first = sum(len(part) for part in parts)
        parts += _batches(
            some, identity, options, rejects, suspicious=suspicious, first_sequence=first
        )
    pieces = [piece for part in parts for piece in part.pieces]
    if not pieces:
        raise ImportFormatError(
            f"No step of {path} can be imported.",
            why=str(rejects.first[0]) if rejects.first else "It has no counts.",
            next_step="Give the files of all ranks (their folder tokens_per_expert), and check "
            "-o expert_parallel=… and -o stage_starts=…",
        )
    notes.append("Counts have no positions and no times: they form step and task windows only.")
    return ParsedFile(
        batches=[batch for part in parts for batch in part],
        rows=sum(piece.tokens for piece in pieces),
        requests=len(pieces),
        suspicious=suspicious,
        notes=tuple(notes),
    )


def _lines(
    path: Path,
    options: Mapping[str, Any],
    rejects: Rejects,
    on_line: Callable[[int], None],
) -> list[CountLine]:
    files = files_of_run(path, FILES)
    check_ranks(files, path)
    limit = options["max_memory_mib"] << 20
    lines, held = [], 0
    for file, number, record in read_records(files, rejects, on_line):
        try:
            line = count_line(file, number, record, options)
        except RejectedLineError as error:
            rejects.add(number, error, file)
            continue
        lines.append(line)
        held += line.batches.nbytes + _LINE_BYTES
        if held * _WORKING_COPIES > limit:
            raise ImportFormatError(
                f"The counts of {path} need more than {limit >> 20} MiB of memory.",
                next_step="Split the files between steps, or raise -o max_memory_mib.",
            )
    return lines


def look(path: Path, options: Mapping[str, Any]) -> None:  # noqa: ARG001 (a `LookAtFile`)
    """See whether a rank's file has counts; as `LookAtFile`."""
    first = files_of_run(path, FILES)[0]
    look_at(
        first,
        MEGATRON_COUNTS.name,
        lambda rejects: read_lines(first, rejects),
        lambda text: counts_of(parse_object(text)),
    )


def _look_for_recomputation(
    lines: list[CountLine], options: Mapping[str, Any], suspicious: Counter[str], notes: list[str]
) -> None:
    """Say so when every micro-batch of every line is there twice."""
    if options["recomputed"] or not lines or not all(line.comes_in_pairs for line in lines):
        return
    suspicious["micro-batches counted twice"] += sum(len(line.batches) // 2 for line in lines)
    notes.append(
        "Every micro-batch appears twice, as with activation recomputation: -o recomputed=yes "
        "counts it once."
    )


def _steps(
    lines: list[CountLine], options: Mapping[str, Any], rejects: Rejects, path: Path
) -> dict[tuple[bool, int, int], _Step]:
    """By (draft?, step, group of ranks)."""
    stages = Stages.of(options, max((line.rank for line in lines), default=0), path)
    sharing, replicas = options["expert_parallel"], options["expert_tensor_parallel"]
    steps: dict[tuple[bool, int, int], _Step] = {}
    for line in lines:
        try:
            within, router = stages.place(line.rank, line.router)
            if within % replicas:
                continue
            group, place = divmod(within // replicas, sharing)
            if options["recomputed"] and not line.comes_in_pairs:
                raise RejectedLineError("micro-batches that do not come in pairs")
            key = router.head >= 0, line.step, group
            parts = steps.setdefault(key, _Step(line)).parts
            if (router, place) in parts:
                raise RejectedLineError("the same step again", f"iter {line.step}")
            parts[router, place] = line.batches.sum(axis=0) // (1 + options["recomputed"])
        except RejectedLineError as error:
            rejects.add(line.number, error, line.file)
    return dict(sorted(steps.items(), key=lambda item: item[0]))


def _batches(
    steps: Mapping[tuple[bool, int, int], _Step],
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    *,
    suspicious: Counter[str],
    first_sequence: int,
) -> list[CountBatches]:
    routers = sorted(
        {router for step in steps.values() for router, _ in step.parts},
        key=lambda router: (router.head, router.layer),
    )
    pieces = []
    for (is_draft, number, group), step in steps.items():
        try:
            counts = _whole(step, routers, options["expert_parallel"])
            tokens = _tokens(counts, options, suspicious)
        except RejectedLineError as error:
            rejects.add(step.first.number, error, step.first.file)
            continue
        pieces.append(
            CountPiece(
                name=f"step-{number}-group-{group}",
                phase=Phase.DRAFT if is_draft else Phase.TRAIN,
                tokens=tokens,
                counts=counts.astype(np.uint32),
                step=number,
            )
        )
    if not pieces:
        return []
    return [
        CountBatches(
            pieces=pieces, identity=identity, model=options["model"],
            revision=options["revision"], engine="megatron-lm", scene=options["scene"],
            layers=layers_of(routers), experts=options["experts"], top_k=options["top_k"],
            first_sequence=first_sequence,
        )
    ]  # fmt: skip


def _whole(step: _Step, routers: list[RouterName], sharing: int) -> NDArray[np.int64]:
    """Counts [L, E] of all experts."""
    missing = defaultdict(list)
    for router in routers:
        for place in range(sharing):
            if (router, place) not in step.parts:
                missing[router.layer].append(place)
    if missing:
        layer, places = next(iter(missing.items()))
        raise RejectedLineError(
            "experts of some ranks are missing", f"layer {layer}, places {places[:8]} of {sharing}"
        )
    return np.stack(
        [
            np.concatenate([step.parts[router, place] for place in range(sharing)])
            for router in routers
        ]
    )


def _tokens(counts: NDArray[np.int64], options: Mapping[str, Any], suspicious: Counter[str]) -> int:
    top_k: int = options["top_k"]
    given: int | None = options["tokens"]
    totals = counts.sum(axis=1)
    if given is not None:
        wrong = int((totals != given * top_k).sum())
        if wrong:
            suspicious["layers whose counts are not tokens × k"] += wrong
        return given
    tokens, rest = divmod(int(totals[0]), top_k)
    if rest or (totals != totals[0]).any() or not 0 < tokens <= LARGEST_TOKENS:
        raise RejectedLineError(
            "counts that are not tokens × k at every layer",
            f"totals {int(totals.min())} to {int(totals.max())}, k = {top_k}",
        )
    if int(counts.max()) > tokens:
        raise RejectedLineError("an expert selected more often than there are tokens")
    return tokens


MEGATRON_COUNTS = ImportFormat(
    "megatron-counts",
    "Tokens per expert of Megatron-LM's steps; a folder of rank files is one run.",
    OPTIONS,
    parse,
    FILES,
    look,
)
