"""Lists of names: a table of distinct strings, and indices into it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.wire.columns import decode_column, encode_column
from moescope.core.wire.errors import BatchDecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moescope.core.wire.reader import ByteReader

_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<H")
_UINT32 = np.dtype(np.uint32)
_BYTES_PER_REFERENCE = 8


def encode_string(text: str) -> bytes:
    """Write one string with its length before it."""
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def decode_string(reader: ByteReader) -> str:
    """Read one string with its length before it.

    Raises:
        BatchDecodeError: It is malformed or too long.
    """
    (length,) = reader.unpack(_LENGTH)
    return reader.text(length)


def encode_table(strings: Iterable[str]) -> bytes:
    """Write a list of strings: their number, a column of lengths, their bytes."""
    encoded = [text.encode() for text in strings]
    lengths = np.array([len(text) for text in encoded], np.uint32)
    return _COUNT.pack(len(encoded)) + encode_column(lengths) + b"".join(encoded)


def decode_table(reader: ByteReader, largest: int) -> tuple[str, ...]:
    """Read a list of at most `largest` strings.

    Raises:
        BatchDecodeError: It is malformed or too long.
    """
    (count,) = reader.unpack(_COUNT)
    if count > largest:
        raise BatchDecodeError(f"{reader.name} has a table of {count} names, over {largest}")
    lengths = decode_column(reader, count, _UINT32).tolist()
    return tuple(reader.texts(lengths))


def encode_name_columns(columns: Sequence[tuple[str, ...]]) -> bytes:
    """Write columns of names over one common table."""
    table = {name: index for index, name in enumerate(dict.fromkeys(_chained(columns)))}
    indices = [np.array([table[name] for name in column], np.uint32) for column in columns]
    return encode_table(table) + b"".join(encode_column(index) for index in indices)


def decode_name_columns(reader: ByteReader, columns: int, count: int) -> list[tuple[str, ...]]:
    """Read `columns` columns of `count` names each.

    Raises:
        BatchDecodeError: They are malformed or too long.
    """
    table = decode_table(reader, columns * count)
    return [_named(reader, table, count) for _ in range(columns)]


def _named(reader: ByteReader, table: tuple[str, ...], count: int) -> tuple[str, ...]:
    index = decode_column(reader, count, _UINT32)
    reader.memory.spend(count * _BYTES_PER_REFERENCE)
    try:
        return tuple(map(table.__getitem__, index.tolist()))
    except IndexError:
        what = f"{reader.name} has an index outside of its table of names"
        raise BatchDecodeError(what) from None


def _chained(columns: Sequence[tuple[str, ...]]) -> Iterable[str]:
    return (name for column in columns for name in column)
