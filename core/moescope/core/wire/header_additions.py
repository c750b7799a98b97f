"""What was added to the header after version 1 was fixed: sections that older readers skip."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.batch import Placement
from moescope.core.wire.columns import decode_column, encode_column
from moescope.core.wire.layout import PLACEMENT_HEAD, UNSEEN_ROWS, SectionId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moescope.core.batch import BatchHeader
    from moescope.core.wire.reader import ByteReader

_UINT16 = np.dtype(np.uint16)


def encode_header_additions(header: BatchHeader) -> Iterator[tuple[SectionId, bytes]]:
    """The sections that this header needs; none where it says nothing new."""
    if header.drops.unseen_rows:
        yield SectionId.UNSEEN, UNSEEN_ROWS.pack(header.drops.unseen_rows)
    placement = header.placement
    if placement is not None:
        head = PLACEMENT_HEAD.pack(placement.version, placement.ranks)
        yield SectionId.PLACEMENT, head + encode_column(placement.rank_of.ravel())


def with_unseen_rows(header: BatchHeader, reader: ByteReader) -> BatchHeader:
    """Read the unseen rows section.

    Raises:
        BatchDecodeError: It is malformed.
    """
    (unseen_rows,) = reader.unpack(UNSEEN_ROWS)
    reader.finish()
    return replace(header, drops=replace(header.drops, unseen_rows=unseen_rows))


def with_placement(header: BatchHeader, reader: ByteReader) -> BatchHeader:
    """Read the placement section.

    Raises:
        BatchDecodeError: It is malformed or too large.
    """
    version, ranks = reader.unpack(PLACEMENT_HEAD)
    shape = (len(header.layers), header.experts)
    rank_of = decode_column(reader, shape[0] * shape[1], _UINT16).reshape(shape)
    reader.finish()
    return replace(header, placement=Placement(version=version, ranks=ranks, rank_of=rank_of))
