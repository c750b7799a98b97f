"""Sequences of returned routes, as engines send them, made into rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.producers.importers.batching import parsed_rows
from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.imported_rows import (
    ImportedRequests,
    ImportedRows,
    phase_starts_from_rows,
)
from moescope.producers.importers.json_responses import as_response, read_responses
from moescope.producers.importers.options import (
    EXPERTS,
    MODEL,
    ROW_OPTIONS,
    Option,
    layer_list,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from moescope.producers.importers.format import ParsedFile
    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.report import Rejects
    from moescope.producers.importers.sequences import Sequence

MOE_LAYERS = Option(
    "moe_layers",
    layer_list,
    None,
    "Decoder layers that are MoE layers, such as 1-47. Dense layers arrive as zeros; without "
    "this list, layers that are zero in the whole file are taken for dense, and named.",
)
SEQUENCE_OPTIONS = (MOE_LAYERS, EXPERTS, *ROW_OPTIONS)


_SEQUENCE_BYTES = 512
"""Of a sequence without its routes and its name."""

TakeApart = Callable[[dict[str, Any], str], Iterator["Sequence"]]
"""Takes one response apart; gets a name for responses that have none."""


def parse_sequences(
    path: Path,
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    on_line: Callable[[int], None],
    *,
    take_apart: TakeApart,
    engine: str,
) -> ParsedFile:
    """Make batches of a file of responses.

    Args:
        path: The file.
        identity: What its batches are called.
        options: Values of all `SEQUENCE_OPTIONS`.
        rejects: Takes responses that cannot be used.
        on_line: Called now and then with the number of lines read.
        take_apart: Understands a response.
        engine: Name of the engine.

    Raises:
        ImportFormatError: No response can be used.
    """
    limit = options["max_memory_mib"] << 20
    sequences = _read(path, rejects, take_apart, on_line, limit)
    if not sequences:
        raise ImportFormatError(
            f"No response of {path} can be imported.",
            why=str(rejects.first[0]) if rejects.first else "It holds none.",
            next_step="Check that the engine returned routed experts.",
        )
    layers, notes = _moe_layers(path, sequences, options)
    rows, dropped = _rows(sequences, layers, options, rejects, engine)
    if not len(rows):
        raise ImportFormatError(
            f"No route of {path} can be imported.", next_step="See the notes on cached tokens."
        )
    if dropped:
        notes.append(f"{dropped} rows of cached prompt tokens were left out: not computed here.")
    surplus = sum(sequence.surplus_rows for _, sequence in sequences)
    if surplus:
        notes.append(f"{surplus} rows of last tokens were left out: those are never computed.")
    return parsed_rows(rows, identity, notes)


def _read(
    path: Path,
    rejects: Rejects,
    take_apart: TakeApart,
    on_line: Callable[[int], None],
    most_bytes: int,
) -> list[tuple[int, Sequence]]:
    """Sequences of one shape, with the line each came from."""
    sequences: list[tuple[int, Sequence]] = []
    shape: tuple[int, ...] = ()
    names: set[str] = set()
    held = before = nth = 0
    for line, response in read_responses(path, rejects):
        nth = nth + 1 if line == before else 1
        before = line
        try:
            name = f"response-{line}" if nth == 1 else f"response-{line}-{nth}"
            found = list(take_apart(as_response(response), name))
            for sequence in found:
                shape = shape or sequence.routes.shape[1:]
                if sequence.routes.shape[1:] != shape:
                    raise RejectedLineError(
                        "another shape than the first response", str(sequence.routes.shape)
                    )
                if sequence.request in names:
                    raise RejectedLineError("the same response again", sequence.request)
        except RejectedLineError as error:
            rejects.add(line, error)
            continue
        names.update(sequence.request for sequence in found)
        sequences += [(line, sequence) for sequence in found]
        held += sum(
            sequence.routes.nbytes + len(sequence.request) + _SEQUENCE_BYTES for sequence in found
        )
        if held > most_bytes:
            raise ImportFormatError(
                f"The routes of {path} need more than {most_bytes >> 20} MiB of memory.",
                next_step="Split the file, or raise -o max_memory_mib.",
            )
        on_line(line)
    return sequences


def _moe_layers(
    path: Path, sequences: list[tuple[int, Sequence]], options: Mapping[str, Any]
) -> tuple[tuple[int, ...], list[str]]:
    """MoE layers as given, else those that are not zero throughout; and what to say about it."""
    hidden = sequences[0][1].routes.shape[1]
    given = options["moe_layers"]
    if given is not None:
        if given[-1] >= hidden:
            raise ImportFormatError(
                f"-o moe_layers names layer {given[-1]}.",
                why=f"The routes of {path} have {hidden} layers, from 0.",
                next_step="Correct the list.",
            )
        return given, []
    if sequences[0][1].routes.shape[2] == 1:
        raise ImportFormatError(
            "With one expert per token, a dense layer cannot be told from expert 0.",
            next_step="Name the MoE layers, for example -o moe_layers=1-47.",
        )
    used = np.zeros(hidden, np.bool_)
    for _, sequence in sequences:
        used |= sequence.routes.any(axis=(0, 2))
    dense = np.flatnonzero(~used).tolist()
    if not used.any():
        raise ImportFormatError(
            f"All routes of {path} are zero.",
            why="Some kernels never fill the buffer that the engine returns.",
            next_step="Record with the probe instead, or name -o moe_layers to import them as "
            "suspicious rows.",
        )
    layers = tuple(int(layer) for layer in np.flatnonzero(used))
    return layers, [f"layers {dense} are zero throughout and were taken for dense"] if dense else []


def _rows(
    sequences: list[tuple[int, Sequence]],
    layers: tuple[int, ...],
    options: Mapping[str, Any],
    rejects: Rejects,
    engine: str,
) -> tuple[ImportedRows, int]:
    """Rows of all sequences, and how many were cached."""
    requests, positions, phases, ids = [], [], [], []
    cached = 0
    for index, (line, sequence) in enumerate(sequences):
        routes = sequence.routes[:, layers, :]
        position = sequence.positions
        computed = position >= sequence.cached_tokens
        cached += int((~computed).sum())
        known = (routes >= 0).all(axis=(1, 2))
        unknown = int((computed & ~known).sum())
        if unknown:
            rejects.add(line, RejectedLineError("rows with unknown (−1) ids", f"{unknown} rows"))
        kept = computed & known
        requests.append(np.full(int(kept.sum()), index, np.int32))
        positions.append(position[kept])
        phases.append(sequence.phases[kept])
        ids.append(routes[kept].astype(np.uint16))
    request, position = np.concatenate(requests), np.concatenate(positions)
    phase = np.concatenate(phases)
    starts = phase_starts_from_rows(
        len(sequences),
        request,
        position,
        phase,
        np.array([sequence.prompt_tokens for _, sequence in sequences], np.int32),
    )
    names = tuple(sequence.request for _, sequence in sequences)
    return ImportedRows(
        model=_model(sequences, options),
        revision=options["revision"],
        engine=engine,
        experts=options["experts"],
        layers=layers,
        requests=ImportedRequests(
            ids=names,
            tasks=names,
            scenes=(options["scene"],) * len(names),
            phase_starts=starts,
            cached_tokens=np.array([sequence.cached_tokens for _, sequence in sequences], np.int32),
        ),
        request=request,
        position=position,
        phase=phase,
        ids=np.concatenate(ids),
    ), cached


def _model(sequences: list[tuple[int, Sequence]], options: Mapping[str, Any]) -> str:
    """The name that the option gives, else the one that all responses agree on."""
    said = {sequence.model for _, sequence in sequences}
    if options["model"] != MODEL.default or len(said) != 1 or "" in said:
        return str(options["model"])
    return said.pop()
