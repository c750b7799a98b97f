"""Rows in a frame: the requests they belong to as runs, then one block per column."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from moescope.producers.ring.facts import MAX_FACTS_BYTES, RequestFacts, unpack_facts
from moescope.producers.ring.layout import FRAME_BYTES, FrameKind, aligned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from moescope.producers.ring.reader import Frame
    from moescope.producers.ring.writer import RingWriter

Columns: TypeAlias = "dict[str, NDArray[Any]]"

SMALL_IDS: Final = 256
LAST_OF_TASK_COLUMN_BIT: Final = 1
"""In an end frame's `columns`: the request was the last one of its task."""

_Extent = Literal["row", "layer", "assignment"]


class _Column(NamedTuple):
    name: str
    dtype: np.dtype[Any]
    extent: _Extent


_COLUMNS: Final = (
    _Column("position", np.dtype(np.int32), "row"),
    _Column("phase", np.dtype(np.uint8), "row"),
    _Column("flags", np.dtype(np.uint8), "row"),
    _Column("event_time_us", np.dtype(np.int64), "row"),
    _Column("pass_id", np.dtype(np.int64), "row"),
    _Column("step", np.dtype(np.int64), "row"),
    _Column("token_id", np.dtype(np.uint64), "row"),
    _Column("content_key", np.dtype(np.uint64), "row"),
    _Column("block", np.dtype(np.int32), "row"),
    _Column("expert_ids", np.dtype(np.uint16), "assignment"),
    _Column("weights", np.dtype(np.float32), "assignment"),
    _Column("entropy", np.dtype(np.float32), "layer"),
    _Column("margin", np.dtype(np.float32), "layer"),
    _Column("dropped", np.dtype(np.bool_), "assignment"),
)
COLUMN_NAMES: Final = tuple(column.name for column in _COLUMNS)
_BITS: Final = {name: 1 << index for index, name in enumerate(COLUMN_NAMES)}
_EVERY_FRAME: Final = sum(_BITS[name] for name in ("position", "phase", "flags", "expert_ids"))
_RUN_ROWS: Final = np.dtype("<u4")


class PlacedColumn(NamedTuple):
    """One column of a frame: what it is called and where its rows lie."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


class Placement(NamedTuple):
    """Where the columns of a frame lie, counted from the end of its runs."""

    columns: tuple[PlacedColumn, ...]
    size: int


@dataclass(frozen=True, slots=True)
class RowShape:
    """What all rows of a producer have in common."""

    layers: int
    top_k: int
    experts: int

    def longest_row_frame(self) -> int:
        """Bytes of the frame of one row with every column and the longest names."""
        return FRAME_BYTES + rows_body_bytes(place_columns(self, -1, 1), 1, MAX_FACTS_BYTES)

    def shortest_row(self) -> int:
        """Bytes that each row takes at least, with no column but those that every frame has."""
        placed = place_columns(self, _EVERY_FRAME, 1).columns
        return sum(column.dtype.itemsize * math.prod(column.shape) for column in placed)


@lru_cache(maxsize=512)
def place_columns(shape: RowShape, mask: int, rows: int) -> Placement:
    """Lay out the columns of a mask for a number of rows, in the order of `COLUMN_NAMES`."""
    tails = {"row": (), "layer": (shape.layers,), "assignment": (shape.layers, shape.top_k)}
    placed = []
    offset = 0
    for name, dtype, extent in _COLUMNS:
        if mask & _BITS[name]:
            is_small = name == "expert_ids" and shape.experts <= SMALL_IDS
            stored = np.dtype(np.uint8) if is_small else dtype
            placed.append(PlacedColumn(name, stored, (rows, *tails[extent]), offset))
            offset += aligned(stored.itemsize * math.prod(placed[-1].shape))
    return Placement(tuple(placed), offset)


def column_mask(names: Mapping[str, object]) -> int:
    """Which columns these are, as a frame's header stores it."""
    return sum(_BITS[name] for name in names)


def rows_body_bytes(placement: Placement, runs: int, facts: int) -> int:
    """Bytes of the body of a frame of rows, `facts` of them the packed facts of its runs."""
    return aligned(runs * _RUN_ROWS.itemsize + facts) + placement.size


def write_rows(
    ring: RingWriter,
    placement: Placement,
    mask: int,
    values: Mapping[str, Any],
    *,
    packed_facts: bytes,
    counts: Sequence[int],
    rows: int,
    first_us: int,
    last_us: int,
) -> None:
    """Write one frame of rows.

    Args:
        ring: Where to.
        placement: `place_columns` of the mask and the number of rows.
        mask: `column_mask` of the values.
        values: Arrays of `rows` rows, or scalars that hold for every row.
        packed_facts: Packed facts of the request of each run of consecutive rows, in a row.
        counts: Rows of each run.
        rows: Number of rows.
        first_us: Earliest event time.
        last_us: Latest event time.
    """
    runs = len(counts)
    size = rows_body_bytes(placement, runs, len(packed_facts))
    at = ring.reserve(size)
    buffer = ring.buffer
    head = struct.pack(f"<{runs}I", *counts) + packed_facts
    buffer[at : at + len(head)] = head
    at += aligned(len(head))
    for name, dtype, shape, offset in placement.columns:
        target = np.ndarray(shape, dtype, buffer, at + offset)
        np.copyto(target, values[name], casting="unsafe")
    ring.publish(
        FrameKind.ROWS, size, rows=rows, runs=runs, columns=mask, runs_bytes=len(head),
        first_us=first_us, last_us=last_us,
    )  # fmt: skip


class DecodedRows(NamedTuple):
    """The rows of one frame.

    Attributes:
        facts: The request of each run of consecutive rows.
        counts: Rows of each run, int64.
        columns: Views of the frame's bytes.
    """

    facts: tuple[RequestFacts, ...]
    counts: NDArray[np.int64]
    columns: Columns


def read_rows(frame: Frame, shape: RowShape) -> DecodedRows:
    """The rows of a frame."""
    header, body = frame.header, frame.body
    counts = np.frombuffer(body, _RUN_ROWS, header.runs).astype(np.int64)
    facts = unpack_facts(bytes(body[header.runs * _RUN_ROWS.itemsize : header.runs_bytes]))
    at = aligned(header.runs_bytes)
    columns: Columns = {}
    for name, dtype, column_shape, offset in place_columns(
        shape, header.columns, header.rows
    ).columns:
        columns[name] = np.ndarray(column_shape, dtype, body, at + offset)
    return DecodedRows(facts, counts, columns)


def write_end(ring: RingWriter, facts: bytes, *, last_of_task: bool, time_us: int) -> None:
    """Write the frame that ends a request."""
    at = ring.reserve(len(facts))
    ring.buffer[at : at + len(facts)] = facts
    ring.publish(
        FrameKind.END, len(facts), runs=1, runs_bytes=len(facts),
        columns=LAST_OF_TASK_COLUMN_BIT if last_of_task else 0,
        first_us=time_us, last_us=time_us,
    )  # fmt: skip


def read_end(frame: Frame) -> tuple[RequestFacts, bool]:
    """The request that a frame ends, and whether its task ends too."""
    (facts,) = unpack_facts(bytes(frame.body[: frame.header.runs_bytes]))
    return facts, bool(frame.header.columns & LAST_OF_TASK_COLUMN_BIT)
