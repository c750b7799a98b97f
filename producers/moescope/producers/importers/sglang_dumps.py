"""Dumps of SGLang's expert distribution recorder, taken apart into passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch_checks import MAX_LAYERS
from moescope.core.vocabulary import MAX_EXPERTS
from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.json_values import as_integer
from moescope.producers.importers.tensor_archive import open_tensors
from moescope.producers.importers.tensor_pickle import TensorView

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.producers.importers.report import Rejects
    from moescope.producers.importers.tensor_archive import TensorArchive

LARGEST_COUNT = 2**31 - 1
"""Of one expert: as many tokens as may be imported at once. 2³² of them add up in 64 bits."""

_LARGEST_PASS = 2**53
_LARGEST_RANK = 2**20
_LARGEST_POSITION = 2**31 - 2
_PRIMARY = "primary"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedPass:
    """Tokens per expert of one forward pass on one rank.

    Attributes:
        number: Of the pass.
        file, record: Where it is: the dump, and the number of the record in it, from 1.
        counts: int64 [L, experts], all hidden layers.
    """

    number: int
    rank: int
    file: Path
    record: int
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailedPass:
    """Ids of each token of one forward pass on one rank.

    Attributes:
        mode: Of the engine: 1 extend, 2 decode, 3 both, and others.
        positions: int32 [N].
        lengths: Rows of each sequence; None in a pass that only decodes.
        ids: [L, N, columns], all hidden layers; −1 where there is none.
    """

    number: int
    rank: int
    file: Path
    record: int
    mode: int
    positions: NDArray[np.int32]
    lengths: tuple[int, ...] | None
    ids: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """One file.

    Attributes:
        mode: `stat`, `per_pass` or `per_token`.
        logical_of_physical: int64 [L, physical experts]; None when ids are logical already.
    """

    mode: str
    counted: tuple[CountedPass, ...] = ()
    detailed: tuple[DetailedPass, ...] = ()
    logical_of_physical: NDArray[np.int64] | None = None


def read_dump(path: Path, rejects: Rejects, most_bytes: int) -> Dump:
    """Read one file.

    Raises:
        ImportFormatError: It is no dump, or needs too much memory.
    """
    with open_tensors(path, most_bytes) as archive:
        data = archive.data
        if isinstance(data, dict) and "logical_count" in data:
            counts = _tensor(archive, data["logical_count"], 3, path, "logical_count")
            _check_bound(counts, LARGEST_COUNT, path, "logical_count")
            counted = tuple(
                CountedPass(number=number, rank=0, file=path, record=number, counts=part)
                for number, part in enumerate(counts, start=1)
            )
            return Dump(mode="stat", counted=counted)
        if not isinstance(data, dict) or not isinstance(data.get("records"), list):
            raise ImportFormatError(
                f"{path} is no dump of SGLang's expert distribution recorder.",
                why="It has neither logical_count nor records.",
                next_step="Dumps are called expert_distribution_recorder_….pt.",
            )
        name = "last_physical_to_logical_map"
        placed = _tensor(archive, data.get(name), 2, path, name)
        # A logical expert has at least one physical one.
        _check_bound(placed, placed.shape[1] - 1, path, name)
        records = data["records"]
        counted_passes, detailed = [], []
        for number, record in enumerate(records, start=1):
            try:
                if isinstance(record, dict) and "topk_ids_of_layer" in record:
                    detailed.append(_detailed(archive, path, record, number, placed.shape))
                else:
                    counted_passes.append(_counted(archive, path, record, number, placed.shape))
            except RejectedLineError as error:
                rejects.add(number, error, path)
        if detailed and counted_passes:
            raise ImportFormatError(
                f"{path} has records of different modes.", next_step="Dump each mode by itself."
            )
        return Dump(
            mode="per_token" if detailed else "per_pass",
            counted=tuple(counted_passes),
            detailed=tuple(detailed),
            logical_of_physical=placed,
        )


def _tensor(
    archive: TensorArchive,
    value: Any,
    axes: int,
    path: Path,
    name: str,
) -> NDArray[np.int64]:
    if not isinstance(value, TensorView) or len(value.shape) != axes:
        raise ImportFormatError(
            f"{path}: {name} is no tensor of {axes} axes.", next_step="Dump it again."
        )
    array = _integers(archive, value)
    layers, experts = value.shape[-2:]
    if array is None or not 1 <= layers <= MAX_LAYERS or not 1 <= experts <= MAX_EXPERTS:
        raise ImportFormatError(
            f"{path}: {name} is impossible.",
            why=f"Shape {value.shape}, or something else than integers from 0.",
            next_step="Dump it again.",
        )
    if array.size and int(array.min()) < 0:
        raise ImportFormatError(f"{path}: {name} has numbers below 0.", next_step="Dump it again.")
    return array


def _check_bound(array: NDArray[np.int64], largest: int, path: Path, name: str) -> None:
    if array.size and int(array.max()) > largest:
        raise ImportFormatError(
            f"{path}: {name} has the number {int(array.max())}.",
            why=f"The largest that makes sense here is {largest}.",
            next_step="Dump it again; a damaged file cannot be imported.",
        )


def _integers(archive: TensorArchive, view: TensorView) -> NDArray[np.int64] | None:
    array = archive.array(view)
    return array.astype(np.int64) if np.issubdtype(array.dtype, np.integer) else None


def _counted(
    archive: TensorArchive,
    file: Path,
    record: Any,
    number: int,
    shape: tuple[int, ...],
) -> CountedPass:
    fields = _fields(record)
    view = fields.get("global_physical_count")
    counts = _integers(archive, view) if isinstance(view, TensorView) else None
    if counts is None or counts.shape != shape:
        raise RejectedLineError("no counts of all layers and experts", f"{shape} are needed")
    if int(counts.min()) < 0:
        raise RejectedLineError("counts below 0")
    if int(counts.max()) > LARGEST_COUNT:
        raise RejectedLineError(f"a count over {LARGEST_COUNT}", "is the file damaged?")
    return CountedPass(
        number=_integer(fields.get("forward_pass_id"), "forward_pass_id", _LARGEST_PASS),
        rank=_integer(fields.get("rank"), "rank", _LARGEST_RANK),
        file=file,
        record=number,
        counts=counts,
    )


def _detailed(
    archive: TensorArchive,
    file: Path,
    record: dict[str, Any],
    number: int,
    shape: tuple[int, ...],
) -> DetailedPass:
    fields = _fields(record)
    positions = _positions(archive, fields.get("positions"))
    view = fields["topk_ids_of_layer"]
    ids = _integers(archive, view) if isinstance(view, TensorView) else None
    if ids is None or ids.ndim != 3 or ids.shape[:2] != (shape[0], len(positions)):  # noqa: PLR2004 - layers, tokens, choices
        raise RejectedLineError("no ids of all layers and tokens", f"{len(positions)} tokens")
    if ids.size and (int(ids.min()) < -1 or int(ids.max()) >= shape[1]):
        raise RejectedLineError(
            "an id beyond the physical experts", "were shared experts fused into the routed ones?"
        )
    lengths = fields.get("extend_seq_lens")
    if isinstance(lengths, TensorView):
        read = _integers(archive, lengths)
        lengths = None if read is None else read.reshape(-1).tolist()
    if lengths is not None and not isinstance(lengths, list):
        raise RejectedLineError("extend_seq_lens is no list")
    return DetailedPass(
        number=_integer(fields.get("forward_pass_id"), "forward_pass_id", _LARGEST_PASS),
        rank=_integer(fields.get("rank"), "rank", _LARGEST_RANK),
        file=file,
        record=number,
        mode=_integer(fields.get("forward_mode"), "forward_mode", 255),
        positions=positions,
        lengths=None
        if lengths is None
        else tuple(_integer(part, "extend_seq_lens", _LARGEST_POSITION) for part in lengths),
        ids=ids,
    )


def _fields(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise RejectedLineError("a record that is no dictionary")
    if record.get("gatherer_key", _PRIMARY) != _PRIMARY:
        raise RejectedLineError("a part of a pass", "of two-batch overlap")
    return record


def _integer(value: Any, name: str, largest: int) -> int:
    # What else it is stays unsaid: printing it could take for ever where lists name each other.
    if type(value) is not int:
        raise RejectedLineError(f"{name} is no integer")
    return as_integer(value, name, largest)


def _positions(archive: TensorArchive, value: Any) -> NDArray[np.int32]:
    if isinstance(value, TensorView):
        read = _integers(archive, value)
        value = None if read is None else read.reshape(-1).tolist()
    if not isinstance(value, list) or any(
        type(part) is not int or not 0 <= part <= _LARGEST_POSITION for part in value
    ):
        raise RejectedLineError("no positions")
    return np.array(value, np.int32)
