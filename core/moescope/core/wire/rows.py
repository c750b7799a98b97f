"""The sections with one row per request or per token."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch import Requests, Tokens
from moescope.core.vocabulary import Phase
from moescope.core.wire.columns import decode_column, encode_column, encode_plain_column
from moescope.core.wire.errors import BatchDecodeError
from moescope.core.wire.names import decode_name_columns, encode_name_columns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from moescope.core.wire.reader import ByteReader

_PRESENT = struct.Struct("<H")
_INT32 = np.dtype(np.int32)
_INT64 = np.dtype(np.int64)
_UINT8 = np.dtype(np.uint8)
_UINT64 = np.dtype(np.uint64)
_ALWAYS: dict[str, np.dtype[Any]] = {
    "request": _INT32,
    "position": _INT32,
    "phase": _UINT8,
    "flags": _UINT8,
}
_OPTIONAL: dict[str, np.dtype[Any]] = {
    "event_time_us": _INT64,
    "pass_id": _INT64,
    "step": _INT64,
    "token_id": _UINT64,
    "content_key": _UINT64,
    "block": _INT32,
}
"""In the order of their present-bits, from the lowest."""


def encode_requests(requests: Requests) -> bytes:
    """Write the requests section."""
    return b"".join(
        [
            encode_name_columns([requests.ids, requests.tasks, requests.scenes]),
            *(encode_column(starts) for starts in requests.phase_starts.T),
            encode_column(requests.cached_tokens),
        ]
    )


def decode_requests(reader: ByteReader, count: int) -> Requests:
    """Read the requests section.

    Raises:
        BatchDecodeError: It is malformed or too large.
    """
    ids, tasks, scenes = decode_name_columns(reader, 3, count)
    starts = [decode_column(reader, count, _INT32) for _ in Phase]
    cached = decode_column(reader, count, _INT32)
    reader.finish()
    return Requests(
        ids=ids,
        tasks=tasks,
        scenes=scenes,
        phase_starts=np.stack(starts, axis=1),
        cached_tokens=cached,
    )


def encode_tokens(tokens: Tokens) -> bytes:
    """Write the tokens section."""
    optional = {name: getattr(tokens, name) for name in _OPTIONAL}
    return b"".join(
        [
            encode_present(optional.values()),
            *(encode_column(getattr(tokens, name)) for name in _ALWAYS),
            *(
                encode_plain_column(column) if column.dtype == _UINT64 else encode_column(column)
                for column in optional.values()
                if column is not None
            ),
        ]
    )


def decode_tokens(reader: ByteReader, count: int) -> Tokens:
    """Read the tokens section.

    Raises:
        BatchDecodeError: It is malformed or too large.
    """
    present = decode_present(reader, len(_OPTIONAL))
    columns = {name: decode_column(reader, count, dtype) for name, dtype in _ALWAYS.items()}
    for is_present, (name, dtype) in zip(present, _OPTIONAL.items(), strict=True):
        if is_present:
            columns[name] = decode_column(reader, count, dtype)
    reader.finish()
    return Tokens(**columns)


def encode_present(columns: Iterable[NDArray[Any] | None]) -> bytes:
    """Write which optional columns follow."""
    return _PRESENT.pack(sum(1 << bit for bit, column in enumerate(columns) if column is not None))


def decode_present(reader: ByteReader, optional: int) -> list[bool]:
    """Read which of `optional` columns follow.

    Raises:
        BatchDecodeError: A bit is set that stands for no column.
    """
    (bits,) = reader.unpack(_PRESENT)
    if bits >> optional:
        raise BatchDecodeError(f"{reader.name} announces a column that version 1 does not have")
    return [bool(bits >> bit & 1) for bit in range(optional)]
