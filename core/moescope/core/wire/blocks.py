"""The sections of counts fidelity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch import BatchHeader, TimeBlocks, TokenBlocks
from moescope.core.wire.columns import decode_column, encode_column, encode_plain_column
from moescope.core.wire.names import decode_table, encode_table
from moescope.core.wire.rows import decode_present, encode_present

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.wire.reader import ByteReader

_INT32 = np.dtype(np.int32)
_INT64 = np.dtype(np.int64)
_UINT8 = np.dtype(np.uint8)
_UINT16 = np.dtype(np.uint16)
_UINT32 = np.dtype(np.uint32)
_TOKEN_COLUMNS: dict[str, np.dtype[Any]] = {
    "request": _INT32,
    "phase": _UINT8,
    "flags": _UINT8,
    "start_position": _INT32,
    "tokens": _INT32,
}
_TOKEN_OPTIONAL = ("first_time_us", "last_time_us", "step", "dropped")
"""In the order of their present-bits, from the lowest."""
_TIME_COLUMNS: dict[str, np.dtype[Any]] = {
    "second_us": _INT64,
    "phase": _UINT8,
    "scene": _UINT16,
    "tokens": _INT64,
    "requests": _INT32,
}
_MOST_SCENES = 1 << 16


def encode_token_blocks(blocks: TokenBlocks) -> bytes:
    """Write the token blocks section."""
    optional = [getattr(blocks, name) for name in _TOKEN_OPTIONAL]
    return b"".join(
        [
            encode_present(optional),
            *(encode_column(getattr(blocks, name)) for name in _TOKEN_COLUMNS),
            *(encode_column(column) for column in optional[:-1] if column is not None),
            *_encode_counts(blocks.counts, blocks.dropped),
        ]
    )


def decode_token_blocks(reader: ByteReader, header: BatchHeader, count: int) -> TokenBlocks:
    """Read the token blocks section.

    Raises:
        BatchDecodeError: It is malformed or too large.
    """
    *timed, has_dropped = decode_present(reader, len(_TOKEN_OPTIONAL))
    columns = _decode_columns(reader, _TOKEN_COLUMNS, count)
    for is_present, name in zip(timed, _TOKEN_OPTIONAL[:-1], strict=True):
        if is_present:
            columns[name] = decode_column(reader, count, _INT64)
    counts = _decode_counts(reader, header, count)
    dropped = _decode_dropped(reader, header, count) if has_dropped else None
    reader.finish()
    return TokenBlocks(**columns, counts=counts, dropped=dropped)


def encode_time_blocks(blocks: TimeBlocks) -> bytes:
    """Write the time blocks section."""
    return b"".join(
        [
            encode_present([blocks.dropped]),
            encode_table(blocks.scenes),
            *(encode_column(getattr(blocks, name)) for name in _TIME_COLUMNS),
            *_encode_counts(blocks.counts, blocks.dropped),
        ]
    )


def decode_time_blocks(reader: ByteReader, header: BatchHeader, count: int) -> TimeBlocks:
    """Read the time blocks section.

    Raises:
        BatchDecodeError: It is malformed or too large.
    """
    (has_dropped,) = decode_present(reader, 1)
    scenes = decode_table(reader, _MOST_SCENES)
    columns = _decode_columns(reader, _TIME_COLUMNS, count)
    counts = _decode_counts(reader, header, count)
    dropped = _decode_dropped(reader, header, count) if has_dropped else None
    reader.finish()
    return TimeBlocks(**columns, scenes=scenes, counts=counts, dropped=dropped)


def _encode_counts(counts: NDArray[np.uint32], dropped: NDArray[np.uint32] | None) -> list[bytes]:
    return [encode_plain_column(part) for part in (counts, dropped) if part is not None]


def _decode_columns(
    reader: ByteReader, dtypes: dict[str, np.dtype[Any]], count: int
) -> dict[str, NDArray[Any]]:
    return {name: decode_column(reader, count, dtype) for name, dtype in dtypes.items()}


def _decode_counts(reader: ByteReader, header: BatchHeader, blocks: int) -> NDArray[np.uint32]:
    shape = (blocks, len(header.layers), header.experts)
    return decode_column(reader, blocks * shape[1] * shape[2], _UINT32).reshape(shape)


def _decode_dropped(reader: ByteReader, header: BatchHeader, blocks: int) -> NDArray[np.uint32]:
    shape = (blocks, len(header.layers))
    return decode_column(reader, shape[0] * shape[1], _UINT32).reshape(shape)
