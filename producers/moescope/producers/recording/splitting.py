"""Cut rows into frames that a batch can hold: short, and of at most one second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from moescope.producers.ring.layout import FRAME_BYTES, Geometry
from moescope.producers.ring.rows import Placement, RowShape, place_columns, rows_body_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_SPAN_US: Final = 1_000_000
"""Event time that one frame, and one batch, spans at most."""


class Chunk(NamedTuple):
    """Rows for one frame, or for several.

    Attributes:
        values: Columns by name, arrays or scalars.
        facts: Packed facts of the request of each run of consecutive rows.
        packed: All of them in a row.
        counts: Rows of each run.
        first_us, last_us: Earliest and latest event time.
    """

    values: Mapping[str, Any]
    facts: Sequence[bytes]
    packed: bytes
    counts: Sequence[int]
    rows: int
    first_us: int
    last_us: int


def fitting_chunks(
    chunk: Chunk, shape: RowShape, mask: int, geometry: Geometry
) -> Iterator[tuple[Chunk, Placement]]:
    """The chunk itself, or its halves' halves until each fits a frame, and how they lie there."""
    placement = place_columns(shape, mask, chunk.rows)
    body = rows_body_bytes(placement, len(chunk.counts), len(chunk.packed))
    fits = FRAME_BYTES + body <= geometry.max_frame_bytes
    if chunk.rows == 1 or (fits and chunk.last_us - chunk.first_us <= MAX_SPAN_US):
        yield chunk, placement
        return
    middle = chunk.rows // 2
    for start, stop in ((0, middle), (middle, chunk.rows)):
        yield from fitting_chunks(_slice(chunk, start, stop), shape, mask, geometry)


def _slice(chunk: Chunk, start: int, stop: int) -> Chunk:
    values = {
        name: value[start:stop] if np.ndim(value) else value for name, value in chunk.values.items()
    }
    facts = []
    counts = []
    at = 0
    for packed, rows in zip(chunk.facts, chunk.counts, strict=True):
        inside = min(at + rows, stop) - max(at, start)
        if inside > 0:
            facts.append(packed)
            counts.append(inside)
        at += rows
    times = values.get("event_time_us")
    first_us, last_us = chunk.first_us, chunk.last_us
    if times is not None:
        first_us, last_us = int(times.min()), int(times.max())
    return Chunk(values, facts, b"".join(facts), counts, stop - start, first_us, last_us)
