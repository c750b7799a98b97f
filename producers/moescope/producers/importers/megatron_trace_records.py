"""Records of a router trace: one micro-batch of one rank at one layer each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch_checks import MAX_TOP_K
from moescope.core.vocabulary import MAX_EXPERTS
from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.json_tables import (
    NoIntegersError,
    RaggedListsError,
    integers_of,
)
from moescope.producers.importers.json_values import as_integer, parse_object, shown
from moescope.producers.importers.looking import look_at
from moescope.producers.importers.megatron_ranks import (
    LARGEST_RANK,
    LARGEST_STEP,
    RouterName,
    read_records,
    router_of,
)
from moescope.producers.importers.source_files import files_of_run, read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.producers.importers.report import Rejects

FILES = "router_trace_rank*.jsonl*"
_LARGEST_TOKENS = 2**24
_STAGE = "pre_dispatch"
_WORKING_COPIES = 3
"""While micro-batches are put together and cut, about so many copies of their ids are in memory."""
_RECORD_BYTES = 512
"""Of a record without its ids."""


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One record.

    Attributes:
        file, line: Where it is.
        rank: Of the whole run.
        router: With the layer as its stage numbers it.
        ids: uint16 [T, k].
    """

    file: Path
    line: int
    step: int
    rank: int
    router: RouterName
    ids: NDArray[np.uint16]


def trace_records(
    path: Path, rejects: Rejects, on_line: Callable[[int], None], limit: int
) -> Iterator[TraceRecord]:
    """Records of a file or a folder that have rows.

    Args:
        path: A rank's file, or the folder of a run.
        rejects: Takes other lines.
        on_line: Called now and then with the number of lines read.
        limit: Bound of the memory for ids, in bytes.

    Raises:
        ImportFormatError: A file cannot be read, the ids need too much memory, or two files hold
            one step of one rank.
    """
    held = 0
    file_of: dict[tuple[int, int], Path] = {}
    for file, line, record in read_records(files_of_run(path, FILES), rejects, on_line):
        try:
            understood = _record(file, line, record)
        except RejectedLineError as error:
            rejects.add(line, error, file)
            continue
        held += understood.ids.nbytes + _RECORD_BYTES
        if held * _WORKING_COPIES > limit:
            raise ImportFormatError(
                f"The rows of {path} need more than {limit >> 20} MiB of memory.",
                next_step="Split the files between steps, or raise -o max_memory_mib.",
            )
        step, rank = understood.step, understood.rank
        if file_of.setdefault((step, rank), file) != file:
            raise ImportFormatError(
                f"Two files of {path} hold step {step} of rank {rank}: "
                f"{file_of[step, rank].name} and {file.name}.",
                why="Its tokens would be counted twice.",
                next_step="Leave one of both files in the folder, or import each run by itself.",
            )
        if len(understood.ids):
            yield understood


def look(path: Path, options: Mapping[str, Any]) -> None:  # noqa: ARG001 (a `LookAtFile`)
    """See whether a trace has records; as `LookAtFile`."""
    first = files_of_run(path, FILES)[0]
    look_at(
        first,
        "megatron-trace",
        lambda rejects: read_lines(first, rejects),
        lambda text: _record(first, 0, parse_object(text)),
    )


def _record(file: Path, line: int, record: dict[str, Any]) -> TraceRecord:
    if record.get("stage", _STAGE) != _STAGE:
        raise RejectedLineError("an unknown stage", shown(record["stage"]))
    tokens = as_integer(record.get("num_tokens"), "num_tokens", _LARGEST_TOKENS)
    top_k = as_integer(record.get("topk"), "topk", MAX_TOP_K)
    return TraceRecord(
        file=file,
        line=line,
        step=as_integer(record.get("step"), "step", LARGEST_STEP),
        rank=as_integer(record.get("rank"), "rank", LARGEST_RANK),
        router=router_of(record),
        ids=_ids(record.get("top_indices"), tokens, top_k),
    )


def _ids(value: Any, tokens: int, top_k: int) -> NDArray[np.uint16]:
    if not isinstance(value, list) or top_k < 1:
        raise RejectedLineError("no top_indices")
    if not value and not tokens:
        return np.empty((0, top_k), np.uint16)
    out_of_range = f"an id is not 0 to {MAX_EXPERTS}"
    try:
        ids = integers_of(value)
    except RaggedListsError as error:
        raise RejectedLineError("ragged top_indices", str(error)) from error
    except NoIntegersError as error:
        raise RejectedLineError(out_of_range, str(error)) from error
    if ids.shape != (tokens, top_k):
        raise RejectedLineError(
            "top_indices of another shape than num_tokens × topk",
            f"{ids.shape}, {tokens} × {top_k}",
        )
    if ids.min() < 0 or ids.max() > MAX_EXPERTS:
        raise RejectedLineError(out_of_range)
    return ids.astype(np.uint16)
