"""Generic JSON lines: one line per token and layer, or one per token, with any field names."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from sys import getsizeof
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch_checks import MAX_LAYERS, MAX_TOP_K
from moescope.core.vocabulary import UNKNOWN_SCENE, Phase, RankOrder
from moescope.producers.importers.batching import RowBatches
from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.format import ImportFormat, ParsedFile
from moescope.producers.importers.imported_rows import (
    ImportedRequests,
    ImportedRows,
    phase_starts_from_rows,
)
from moescope.producers.importers.json_values import TIME_UNITS, parse_object
from moescope.producers.importers.jsonl_lines import FIELDS, Line, LineReader
from moescope.producers.importers.looking import look_at
from moescope.producers.importers.options import (
    EXPERTS,
    IMPORTABLE_PHASES,
    MAX_MEMORY,
    MAX_REJECTED,
    MODEL,
    RANK_ORDERS,
    REVISION,
    SCENE,
    Option,
    choice,
    layer_list,
)
from moescope.producers.importers.source_files import read_lines
from moescope.producers.importers.suspicion import suspicious_pairs
from moescope.producers.importers.token_table import assemble_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from moescope.producers.importers.identity import ImportIdentity
    from moescope.producers.importers.report import Rejects

_REPORT_EVERY = 65_536
_WORKING_COPIES = 3
"""While rows are sorted and cut, about so many copies of them are in memory."""
_LINE_BYTES = 45
"""Of a line without its ids and weights."""
_REQUEST_BYTES = 200
"""Of a request with usual names."""

OPTIONS = (
    *(
        Option(f"map.{field}", str, field, f"Name in the file of the field {field}; empty: none.")
        for field in FIELDS
    ),
    EXPERTS,
    MODEL,
    REVISION,
    SCENE,
    Option("phase", choice(IMPORTABLE_PHASES), Phase.EVAL, "Phase of lines that name none."),
    Option(
        "layers",
        layer_list,
        None,
        "Layers, such as 0,3-5: names the layers of lines that hold all of them, or limits "
        "which are accepted.",
    ),
    Option(
        "time_unit",
        choice({unit: unit for unit in TIME_UNITS}),
        "s",
        "Unit of times that are numbers: s, ms, us or ns since 1970; text is ISO 8601.",
    ),
    Option(
        "rank_order",
        choice(RANK_ORDERS),
        RankOrder.UNKNOWN,
        "What the order of a row's ids means: unknown, selection_score or weight. With weights "
        "in the file, weight sorts by them.",
    ),
    Option(
        "weight_bits",
        choice({"0": 0, "4": 4, "8": 8, "16": 16}),
        0,
        "Precision of stored weights: 0 (none), 4, 8 or 16 bits.",
    ),
    MAX_REJECTED,
    MAX_MEMORY,
)


class _Lines:
    """Accepted lines of a file as compact columns.

    Attributes:
        held_bytes: Memory of the columns, and of usual names.
        name_bytes: Of names beyond that.
    """

    def __init__(self, layers: tuple[int, ...] | None) -> None:
        self.layers = layers
        self.first: Line | None = None
        self.line = array("q")
        self.request = array("i")
        self.layer = array("i")
        self.position = array("i")
        self.phase = array("B")
        self.time_us = array("q")
        self.pass_id = array("q")
        self.step = array("q")
        self.experts = array("H")
        self.weights = array("f")
        self.request_index: dict[str, int] = {}
        self.tasks: list[str] = []
        self.scenes: list[str] = []
        self.prompt_tokens: list[int] = []
        self.held_bytes = 0
        self.name_bytes = 0

    def __len__(self) -> int:
        return len(self.line)

    def add(self, number: int, line: Line) -> None:
        """Take in a line.

        Raises:
            RejectedLineError: It does not fit to the lines before.
        """
        self._check(line)
        index = self.request_index.get(line.request)
        if index is None:
            index = self.request_index[line.request] = len(self.tasks)
            self.tasks.append(line.task)
            self.scenes.append(line.scene)
            self.prompt_tokens.append(line.prompt_tokens)
            self.held_bytes += _REQUEST_BYTES
            names = sum(map(getsizeof, (line.request, line.task, line.scene)))
            self.name_bytes += max(0, names - _REQUEST_BYTES)
        self.line.append(number)
        self.request.append(index)
        self.layer.append(line.layer)
        self.position.append(line.position)
        self.phase.append(line.phase)
        self.time_us.append(line.time_us)
        self.pass_id.append(line.pass_id)
        self.step.append(line.step)
        self.experts.extend(line.experts)
        self.held_bytes += _LINE_BYTES + len(line.experts) * self.experts.itemsize
        if line.weights is not None:
            self.weights.extend(line.weights)
            self.held_bytes += len(line.weights) * self.weights.itemsize

    def _check(self, line: Line) -> None:
        if line.layer < 0 and self.layers is not None and len(self.layers) != line.layers:
            raise RejectedLineError(
                "another number of layers", f"{line.layers}, not {len(self.layers)}"
            )
        if line.top_k > MAX_TOP_K or line.layers > MAX_LAYERS:
            raise RejectedLineError(
                "more experts or layers than a batch holds", f"{line.layers} × {line.top_k}"
            )
        if self.first is None:
            self.first = line
        if line.shape != self.first.shape:
            raise RejectedLineError(
                "another shape than the first line", f"{line.layers} × {line.top_k} experts"
            )
        if line.columns != self.first.columns:
            raise RejectedLineError(
                "other fields than the first line", "position, time, pass, step or weights"
            )
        if line.layer >= 0 and self.layers is not None and line.layer not in self.layers:
            raise RejectedLineError("an unexpected layer", str(line.layer))


def parse(
    path: Path,
    identity: ImportIdentity,
    options: Mapping[str, Any],
    rejects: Rejects,
    on_line: Callable[[int], None],
) -> ParsedFile:
    """Read a file of JSON lines; see `docs/reference/importers/jsonl.md`.

    Raises:
        ImportFormatError: No line can be used, or the rows need more memory than allowed.
    """
    lines = _read(path, options, rejects, on_line)
    if lines.first is None:
        raise ImportFormatError(
            f"No line of {path} can be imported.",
            why=str(rejects.first[0]) if rejects.first else "It has no lines.",
            next_step="Check the format, and the field names (-o map.experts=NAME).",
        )
    if lines.first.top_k > options["experts"]:
        raise ImportFormatError(
            f"The first line of {path} selects {lines.first.top_k} experts per layer.",
            why=f"There are only {options['experts']}.",
            next_step="Check -o experts=… and -o map.experts=…",
        )
    rows = _rows(lines, identity, options, rejects)
    if not len(rows):
        raise ImportFormatError(
            f"No token of {path} is complete.",
            why=str(rejects.first[0]) if rejects.first else "",
            next_step="Check the field names, -o map.position=NAME and -o layers=… first.",
        )
    batches = RowBatches(rows, identity, weight_bits=options["weight_bits"])
    notes = []
    if batches.raised_times:
        notes.append(
            f"{batches.raised_times} rows were earlier than a lower position of their request: "
            "their event times were raised."
        )
    return ParsedFile(
        batches=batches,
        rows=len(rows),
        requests=len(np.unique(rows.request)),
        suspicious=suspicious_pairs(rows.ids, rows.experts),
        notes=tuple(notes),
    )


def _read(
    path: Path, options: Mapping[str, Any], rejects: Rejects, on_line: Callable[[int], None]
) -> _Lines:
    reader = _line_reader(options)
    lines = _Lines(options["layers"])
    limit = options["max_memory_mib"] << 20
    for number, text in read_lines(path, rejects):
        try:
            lines.add(number, reader.read(parse_object(text)))
        except RejectedLineError as error:
            rejects.add(number, error)
        _check_memory(lines, limit, path)
        if number % _REPORT_EVERY == 0:
            on_line(number)
    return lines


def _line_reader(options: Mapping[str, Any]) -> LineReader:
    return LineReader(
        {field: options[f"map.{field}"] for field in FIELDS},
        options["phase"],
        options["time_unit"],
        with_weights=options["weight_bits"] > 0 or options["rank_order"] is RankOrder.WEIGHT,
    )


def look(path: Path, options: Mapping[str, Any]) -> None:
    """See whether a file has lines of routing; as `LookAtFile`."""
    reader = _line_reader(options)
    look_at(
        path,
        JSONL.name,
        lambda rejects: read_lines(path, rejects),
        lambda text: reader.read(parse_object(text)),
    )


def _check_memory(lines: _Lines, limit: int, path: Path) -> None:
    if lines.held_bytes * _WORKING_COPIES + lines.name_bytes > limit:
        raise ImportFormatError(
            f"The rows of {path} need more than {limit >> 20} MiB of memory.",
            why="Rows of a file are sorted by request and time before they are written.",
            next_step="Split the file between requests, or raise -o max_memory_mib.",
        )


@dataclass(frozen=True, slots=True)
class _Shape:
    layers: tuple[int, ...]
    top_k: int


def _rows(
    lines: _Lines, identity: ImportIdentity, options: Mapping[str, Any], rejects: Rejects
) -> ImportedRows:
    first = lines.first
    assert first is not None  # noqa: S101 (the caller checked)
    tokens = assemble_tokens(
        line=np.frombuffer(lines.line, np.int64),
        request=np.frombuffer(lines.request, np.int32),
        layer=np.frombuffer(lines.layer, np.int32),
        position=np.frombuffer(lines.position, np.int32),
        reject=rejects.add,
    )
    width = first.layers * first.top_k
    shape = _Shape(_layers(lines, first), first.top_k)
    experts = np.frombuffer(lines.experts, np.uint16).reshape(-1, width)
    ids = _by_token(experts, tokens.cells, shape)
    weights = None
    if first.weights is not None:
        held = np.frombuffer(lines.weights, np.float32).reshape(-1, width)
        weights = _by_token(held, tokens.cells, shape)
        if options["rank_order"] is RankOrder.WEIGHT:
            order = np.argsort(-weights, axis=-1, kind="stable")
            ids = np.take_along_axis(ids, order, axis=-1)
            weights = np.take_along_axis(weights, order, axis=-1)
    where = tokens.cells[:, 0]
    request = np.frombuffer(lines.request, np.int32)[where]
    phase = np.frombuffer(lines.phase, np.uint8)[where]
    names = [name or identity.node for name in lines.request_index]
    starts = phase_starts_from_rows(
        len(names), request, tokens.position, phase, np.array(lines.prompt_tokens, np.int32)
    )
    return ImportedRows(
        model=options["model"],
        revision=options["revision"],
        engine="import-jsonl",
        experts=options["experts"],
        layers=shape.layers,
        requests=ImportedRequests(
            ids=tuple(names),
            tasks=tuple(task or name for task, name in zip(lines.tasks, names, strict=True)),
            scenes=tuple(scene or options["scene"] or UNKNOWN_SCENE for scene in lines.scenes),
            phase_starts=starts,
            cached_tokens=np.zeros(len(names), np.int32),
        ),
        request=request,
        position=tokens.position,
        phase=phase,
        ids=ids,
        weights=weights,
        event_time_us=np.frombuffer(lines.time_us, np.int64)[where] if first.time_us >= 0 else None,
        pass_id=np.frombuffer(lines.pass_id, np.int64)[where] if first.pass_id >= 0 else None,
        step=np.frombuffer(lines.step, np.int64)[where] if first.step >= 0 else None,
        rank_order=options["rank_order"],
    )


def _layers(lines: _Lines, first: Line) -> tuple[int, ...]:
    if first.layer < 0:
        return lines.layers or tuple(range(first.layers))
    found = np.unique(np.frombuffer(lines.layer, np.int32)).tolist()
    if len(found) > MAX_LAYERS:
        raise ImportFormatError(
            f"The lines name {len(found)} different layers.", next_step="Check -o map.layer=…"
        )
    return tuple(found)


def _by_token(
    values: np.ndarray[Any, Any], cells: np.ndarray[Any, Any], shape: _Shape
) -> np.ndarray[Any, Any]:
    """Values of lines [N, …] as [T, L, k]."""
    by_token: np.ndarray[Any, Any] = values[cells]
    return by_token.reshape(len(cells), len(shape.layers), shape.top_k)


JSONL = ImportFormat(
    "jsonl",
    "JSON lines with any field names, per token or per token and layer.",
    OPTIONS,
    parse,
    look=look,
)
