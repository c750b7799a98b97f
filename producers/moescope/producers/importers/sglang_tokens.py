"""Passes of SGLang's recorder with the ids of each token, made into rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch import NO_START
from moescope.core.vocabulary import IdSpace, Phase
from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.imported_rows import ImportedRequests, ImportedRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.report import Rejects
    from moescope.producers.importers.sglang_dumps import DetailedPass

EXTEND, DECODE, MIXED, IDLE, TARGET_VERIFY, DRAFT_EXTEND = range(1, 7)
_PHASES = {EXTEND: Phase.PREFILL, DECODE: Phase.DECODE, MIXED: Phase.PREFILL,
           TARGET_VERIFY: Phase.DRAFT, DRAFT_EXTEND: Phase.DRAFT}  # fmt: skip


def token_rows(
    passes: Sequence[DetailedPass],
    placed: NDArray[np.int64],
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    *,
    path: Path,
) -> ImportedRows:
    """Rows of all passes.

    The engine wrote no request ids: a sequence of a prefill pass is a request, and so is each row
    of a decode pass, since nothing tells which rows of two passes belong together.

    Args:
        passes: In order.
        placed: int64 [L, physical experts], logical experts.
        identity: Names the task.
        options: Of the format.
        rejects: Takes passes that cannot be used.
        path: Of the dump, for messages.

    Raises:
        ImportFormatError: There is no row, or k is another than given.
    """
    top_k, layers = _shape(passes, options["top_k"], path)
    parts: list[tuple[NDArray[Any], ...]] = []
    names: list[str] = []
    ids: list[NDArray[np.int64]] = []
    padding = 0
    for one in passes:
        try:
            length_of_sequence, phase = _sequences(one)
        except RejectedLineError as error:
            rejects.add(one.record, error, one.file)
            continue
        rows = int(length_of_sequence.sum())
        padding += len(one.positions) - rows
        sequence = np.repeat(np.arange(len(length_of_sequence)), length_of_sequence)
        chosen = one.ids[list(layers), :rows, :top_k].transpose(1, 0, 2)
        known = (chosen >= 0).all(axis=(1, 2))
        if not known.all():
            missing = f"{int((~known).sum())} rows"
            rejects.add(one.record, RejectedLineError("rows without all ids", missing), one.file)
        parts.append(
            (
                sequence[known] + len(names),
                one.positions[:rows][known].astype(np.int64),
                np.repeat(phase, length_of_sequence)[known],
                np.full(int(known.sum()), one.number, np.int64),
            )
        )
        ids.append(chosen[known])
        names += [
            f"pass-{one.number}-rank-{one.rank}-{place}" for place in range(len(length_of_sequence))
        ]
    if not parts or not sum(len(part) for part in ids):
        raise ImportFormatError(
            f"No token of {path} can be imported.",
            why=str(rejects.first[0]) if rejects.first else "The dump has no passes with tokens.",
            next_step="Record again with --expert-distribution-recorder-mode per_token.",
        )
    request, position, phase, pass_id = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    routes = np.concatenate(ids)
    if options["ids"] is IdSpace.LOGICAL:
        routes = placed[np.array(layers)[:, None], routes]
        experts = int(placed.max()) + 1
    else:
        experts = placed.shape[1]
    starts = np.full((len(names), len(Phase)), NO_START, np.int32)
    starts[:, Phase.PREFILL] = 0
    return ImportedRows(
        model=options["model"],
        revision=options["revision"],
        engine="sglang",
        experts=experts,
        layers=layers,
        requests=ImportedRequests(
            ids=tuple(names),
            tasks=(identity.node,) * len(names),
            scenes=(options["scene"],) * len(names),
            phase_starts=starts,
            cached_tokens=np.zeros(len(names), np.int32),
        ),
        request=request.astype(np.int32),
        position=position.astype(np.int32),
        phase=phase.astype(np.uint8),
        ids=routes.astype(np.uint16),
        pass_id=pass_id,
        id_space=options["ids"],
        notes=(f"{padding} rows of padding were left out.",) if padding else (),
    )


def _shape(
    passes: Sequence[DetailedPass], given: int | None, path: Path
) -> tuple[int, tuple[int, ...]]:
    """k, and the layers that have ids at all: those of dense layers stay at −1."""
    columns, layers = 0, set[int]()
    for one in passes:
        is_used = one.ids >= 0
        columns = max(columns, int(is_used.any(axis=(0, 1)).sum()))
        layers |= set(np.flatnonzero(is_used.any(axis=(1, 2))).tolist())
    if given is not None and columns and given != columns:
        raise ImportFormatError(
            f"Tokens of {path} have {columns} experts, not {given}.",
            why="The recorder keeps at most 8.",
            next_step="Check -o top_k=…; it can be left out here.",
        )
    return columns, tuple(sorted(layers))


def _sequences(one: DetailedPass) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Rows of each sequence of a pass, and its phase."""
    if one.mode == IDLE:
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    phase = _PHASES.get(one.mode)
    if phase is None:
        raise RejectedLineError("a pass of an unknown mode", f"forward_mode {one.mode}")
    rows = len(one.positions)
    if one.mode not in {EXTEND, MIXED}:
        return np.ones(rows, np.int64), np.full(rows, phase, np.uint8)
    if one.lengths is None or sum(one.lengths) > rows:
        raise RejectedLineError("extend_seq_lens do not match the tokens", f"{rows} tokens")
    lengths = np.array(one.lengths, np.int64)
    phases = np.full(len(lengths), phase, np.uint8)
    if one.mode == MIXED:
        first = one.positions[np.minimum(np.cumsum(lengths) - lengths, max(rows - 1, 0))]
        phases[(lengths == 1) & (first > 0)] = Phase.DECODE
    return lengths, phases
