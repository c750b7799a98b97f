"""Dumps of SGLang's expert distribution recorder: counts per pass, or ids per token."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from moescope.core.batch_checks import MAX_TOP_K
from moescope.core.vocabulary import IdSpace, Phase
from moescope.producers.importers.batching import parsed_rows
from moescope.producers.importers.count_batches import LARGEST_TOKENS, CountBatches, CountPiece
from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.format import ImportFormat, ParsedFile
from moescope.producers.importers.options import ROW_OPTIONS, Option, choice, integer
from moescope.producers.importers.sglang_dumps import read_dump
from moescope.producers.importers.sglang_tokens import token_rows
from moescope.producers.importers.source_files import files_of_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.report import Rejects
    from moescope.producers.importers.sglang_dumps import CountedPass, DetailedPass, Dump

FILES = "expert_distribution_recorder_*.pt"
OPTIONS = (
    Option(
        "top_k",
        integer(1, MAX_TOP_K),
        None,
        "Experts per token. Counts do not tell it; ids per token do, where it is at most 8.",
    ),
    Option(
        "ids",
        choice({space.name.lower(): space for space in IdSpace}),
        IdSpace.LOGICAL,
        "logical maps physical experts by the last map of the dump; physical leaves them as they "
        "were executed.",
    ),
    *ROW_OPTIONS,
)


def parse(
    path: Path,
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    on_line: Callable[[int], None],
) -> ParsedFile:
    """Read a dump, or the dumps of all ranks; see `docs/reference/importers/sglang-records.md`.

    Raises:
        ImportFormatError: It is no dump, or nothing of it can be used.
    """
    dumps = []
    for done, file in enumerate(files_of_run(path, FILES), start=1):
        dumps.append(read_dump(file, rejects, options["max_memory_mib"] << 20))
        on_line(done)
    if len({dump.mode for dump in dumps}) > 1:
        raise ImportFormatError(
            f"{path} has dumps of different modes.",
            why=", ".join(sorted({dump.mode for dump in dumps})),
            next_step="Import each by itself.",
        )
    first = dumps[0].logical_of_physical
    if first is not None and not all(_same(first, dump.logical_of_physical) for dump in dumps):
        raise ImportFormatError(
            f"The dumps of {path} place experts differently.", next_step="Import each by itself."
        )
    notes = _notes(first, options["ids"])
    read = _by_token if dumps[0].mode == "per_token" else _by_count
    return read(dumps, identity, options, rejects, path=path, notes=notes)


AnyPass = TypeVar("AnyPass", "CountedPass", "DetailedPass")


def _same(one: NDArray[np.int64], other: NDArray[np.int64] | None) -> bool:
    return other is not None and np.array_equal(one, other)


def _notes(placed: NDArray[np.int64] | None, ids: IdSpace) -> list[str]:
    if placed is None or ids is IdSpace.PHYSICAL or (placed == np.arange(placed.shape[1])).all():
        return []
    note = "Physical experts were mapped by the last placement: passes before a rebalancing would "
    return [f"{note}be mapped wrongly."]


def _by_count(
    dumps: Sequence[Dump],
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    *,
    path: Path,
    notes: list[str],
) -> ParsedFile:
    """One piece of all passes: their order is lost, or says nothing about requests."""
    if options["top_k"] is None:
        raise ImportFormatError(
            f"The number of experts per token is not known for {path}.",
            why="Counts only show how many tokens each expert had.",
            next_step="Give num_experts_per_tok of the model's config, for example -o top_k=8.",
        )
    passes = [counted for dump in dumps for counted in dump.counted]
    if dumps[0].mode == "per_pass":
        passes = _summed(_distinct_ranks(passes, lambda one: one.counts, notes))
    placed = dumps[0].logical_of_physical if options["ids"] is IdSpace.LOGICAL else None
    total, tokens, layers = _added_up(passes, placed, options["top_k"], rejects, path)
    name = identity.node
    pieces = [CountPiece(name=name, phase=Phase.EVAL, tokens=tokens, counts=total[list(layers)])]
    batches = CountBatches(
        pieces=pieces, identity=identity, model=options["model"], revision=options["revision"],
        engine="sglang", scene=options["scene"], layers=layers, experts=total.shape[1],
        top_k=options["top_k"], id_space=options["ids"],
    )  # fmt: skip
    notes.append("Counts have no positions and no times: they form a task window only.")
    return ParsedFile(batches=batches, rows=tokens, requests=1, suspicious={}, notes=tuple(notes))


def _by_token(
    dumps: Sequence[Dump],
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    *,
    path: Path,
    notes: list[str],
) -> ParsedFile:
    passes = [detailed for dump in dumps for detailed in dump.detailed]
    passes = _distinct_ranks(passes, lambda one: one.ids, notes)
    placed = dumps[0].logical_of_physical
    assert placed is not None  # noqa: S101 (this mode has one)
    rows = token_rows(passes, placed, identity, options, rejects, path=path)
    notes += rows.notes
    return parsed_rows(rows, identity, notes)


def _distinct_ranks(
    passes: Sequence[AnyPass], content: Callable[[AnyPass], NDArray[np.int64]], notes: list[str]
) -> list[AnyPass]:
    """Passes without those of ranks that saw the same tokens as another one."""
    digests: dict[int, Any] = {}
    for one in passes:
        digest = digests.setdefault(one.rank, hashlib.sha256())
        digest.update(one.number.to_bytes(8, "little") + content(one).tobytes())
    first_of: dict[bytes, int] = {}
    for rank, digest in digests.items():
        first_of.setdefault(digest.digest(), rank)
    kept = set(first_of.values())
    if len(kept) < len(digests):
        repeated = sorted(set(digests) - kept)
        notes.append(f"Ranks {repeated} repeat what others saw, and were left out.")
    return [one for one in passes if one.rank in kept]


def _summed(passes: Iterable[CountedPass]) -> list[CountedPass]:
    """Passes of several ranks, added up by number."""
    by_number: dict[int, CountedPass] = {}
    for one in passes:
        known = by_number.get(one.number)
        added = one if known is None else replace(known, counts=known.counts + one.counts)
        by_number[one.number] = added
    return list(by_number.values())


def _added_up(
    passes: Sequence[CountedPass],
    placed: NDArray[np.int64] | None,
    top_k: int,
    rejects: Rejects,
    path: Path,
) -> tuple[NDArray[np.uint32], int, tuple[int, ...]]:
    """Counts [L, E] of all passes that add up, their tokens, and the MoE layers."""
    used = [one for one in passes if one.counts.any()]
    is_moe = np.any([one.counts.any(axis=1) for one in used], axis=0) if used else np.empty(0)
    tokens, total = 0, None
    for one in used:
        counts = one.counts if placed is None else _logical(one.counts, placed)
        sums = counts[is_moe].sum(axis=1)
        if len(set(sums.tolist())) > 1 or int(sums[0]) % top_k:
            rejects.add(
                one.record,
                RejectedLineError(
                    "counts that are not tokens × k at every layer",
                    f"totals {int(sums.min())} to {int(sums.max())}, k = {top_k}: are experts of "
                    "some ranks missing, or were counts padded?",
                ),
                one.file,
            )
            continue
        tokens += int(sums[0]) // top_k
        total = counts if total is None else total + counts
    if total is not None and tokens <= LARGEST_TOKENS and int(total.max()) > tokens:
        raise ImportFormatError(
            f"An expert of {path} has {int(total.max())} of {tokens} tokens.",
            why="No token chooses an expert twice.",
            next_step="Check -o top_k=…, and whether the counts are those of one model.",
        )
    if total is None or tokens > LARGEST_TOKENS:
        raise ImportFormatError(
            f"No counts of {path} can be imported."
            if total is None
            else f"{path} counts {tokens} tokens, over {LARGEST_TOKENS}.",
            why=str(rejects.first[0]) if rejects.first else "All of them are zero.",
            next_step="Give the dumps of all ranks (their folder), and check -o top_k=…",
        )
    return total.astype(np.uint32), tokens, tuple(np.flatnonzero(is_moe).tolist())


def _logical(counts: NDArray[np.int64], placed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts [L, physical] as [L, logical]."""
    logical = np.zeros((len(counts), int(placed.max()) + 1), np.int64)
    np.add.at(logical, (np.arange(len(counts))[:, None], placed), counts)
    return logical


SGLANG_RECORDS = ImportFormat(
    "sglang-records",
    "Dumps of SGLang's expert distribution recorder; a folder of them is one run.",
    OPTIONS,
    parse,
    FILES,
)
