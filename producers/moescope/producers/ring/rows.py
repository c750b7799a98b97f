"""Rows in a frame: the requests they belong to as runs, then one block per column."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moescope.producers.ring.facts import MAX_FACTS_BYTES, RequestFacts, unpack_facts
from moescope.producers.ring.layout import FRAME_BYTES, FrameKind, aligned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moescope.producers.ring.reader import Frame
    from moescope.producers.ring.writer import RingWriter

Columns = dict[str, NDArray[Any]]

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
_RUN_ROWS: Final = np.dtype("<u4")


class PlacedColumn(NamedTuple):
    """One column of a frame: what it is called and how a row of it looks."""

    name: str
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    row_bytes: int


@dataclass(frozen=True, slots=True)
class RowShape:
    """What all rows of a producer have in common."""

    layers: int
    top_k: int
    experts: int

    def columns(self, mask: int) -> tuple[PlacedColumn, ...]:
        """The columns of a mask, in the order in which a frame holds them."""
        return _placed_columns(self, mask)

    def longest_row_frame(self) -> int:
        """Bytes of the frame of one row with every column and the longest names."""
        columns = sum(aligned(column.row_bytes) for column in self.columns(-1))
        return FRAME_BYTES + aligned(_RUN_ROWS.itemsize + MAX_FACTS_BYTES) + columns


@lru_cache(maxsize=256)
def _placed_columns(shape: RowShape, mask: int) -> tuple[PlacedColumn, ...]:
    tails = {"row": (), "layer": (shape.layers,), "assignment": (shape.layers, shape.top_k)}
    placed = []
    for name, dtype, extent in _COLUMNS:
        if mask & _BITS[name]:
            is_small = name == "expert_ids" and shape.experts <= SMALL_IDS
            stored = np.dtype(np.uint8) if is_small else dtype
            row_bytes = stored.itemsize * math.prod(tails[extent])
            placed.append(PlacedColumn(name, stored, tails[extent], row_bytes))
    return tuple(placed)


def column_mask(names: Mapping[str, object]) -> int:
    """Which columns these are, as a frame's header stores it."""
    return sum(_BITS[name] for name in names)


def rows_body_bytes(columns: Sequence[PlacedColumn], rows: int, runs: int, facts: int) -> int:
    """Bytes of the body of a frame of rows, `facts` of them the packed facts of its runs."""
    size = aligned(runs * _RUN_ROWS.itemsize + facts)
    for column in columns:
        size += aligned(column.row_bytes * rows)
    return size


def write_rows(
    ring: RingWriter,
    columns: Sequence[PlacedColumn],
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
        columns: `RowShape.columns(mask)`.
        mask: `column_mask` of the values.
        values: Arrays of `rows` rows, or scalars that hold for every row.
        packed_facts: Packed facts of the request of each run of consecutive rows, in a row.
        counts: Rows of each run.
        rows: Number of rows.
        first_us: Earliest event time.
        last_us: Latest event time.
    """
    runs = len(counts)
    size = rows_body_bytes(columns, rows, runs, len(packed_facts))
    at = ring.reserve(size)
    buffer = ring.buffer
    head = struct.pack(f"<{runs}I", *counts) + packed_facts
    buffer[at : at + len(head)] = head
    at += aligned(len(head))
    for name, dtype, row_shape, row_bytes in columns:
        target = np.ndarray((rows, *row_shape), dtype, buffer, at)
        np.copyto(target, values[name], casting="unsafe")
        at += aligned(row_bytes * rows)
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
    header, body = frame
    counts = np.frombuffer(body, _RUN_ROWS, header.runs).astype(np.int64)
    facts = unpack_facts(bytes(body[header.runs * _RUN_ROWS.itemsize : header.runs_bytes]))
    at = aligned(header.runs_bytes)
    columns: Columns = {}
    for name, dtype, row_shape, row_bytes in shape.columns(header.columns):
        columns[name] = np.ndarray((header.rows, *row_shape), dtype, body, at)
        at += aligned(row_bytes * header.rows)
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
