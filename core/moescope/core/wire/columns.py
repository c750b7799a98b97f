"""Integer columns: differences, plain values or a dictionary, each in byte planes.

Values are taken modulo 2^64 (two's complement), whatever the type of the column is.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.wire.byte_planes import bytes_needed, from_byte_planes, to_byte_planes
from moescope.core.wire.errors import BatchDecodeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.wire.reader import ByteReader

_UINT64 = np.dtype(np.uint64)
_FORM = struct.Struct("<B")
_WIDTH = struct.Struct("<B")
_DELTA_HEAD = struct.Struct("<QB")
_COUNT = struct.Struct("<I")
_DICTIONARY_ROWS = 16
"""Shorter columns are not worth a dictionary."""
_ONE = np.uint64(1)
_DIFFERENCES = np.array(
    [-(code + 1) // 2 if code % 2 else code // 2 for code in range(256)], np.int64
).view(np.uint64)
"""Difference that each zigzag code of one byte stands for, modulo 2^64."""


class ColumnForm(IntEnum):
    """How a column's values are written."""

    DELTA = 0
    PLAIN = 1
    DICTIONARY = 2


def encode_column(values: NDArray[np.integer[Any]]) -> bytes:
    """Write a column that has runs, slow growth or few distinct values.

    Args:
        values: [n], of any integer type.
    """
    unsigned = _as_uint64(values)
    delta = _encode_delta(unsigned)
    if len(delta) > _DELTA_HEAD.size + len(unsigned) and len(unsigned) >= _DICTIONARY_ROWS:
        distinct, index = np.unique(unsigned, return_inverse=True)
        body = _encode_delta(distinct) + _encode_delta(index.astype(np.uint64))
        if len(body) < len(delta):
            return _FORM.pack(ColumnForm.DICTIONARY) + _COUNT.pack(len(distinct)) + body
    return _FORM.pack(ColumnForm.DELTA) + delta


def encode_plain_column(values: NDArray[np.unsignedinteger[Any]]) -> bytes:
    """Write a column without any order in it: hashes, counts.

    Args:
        values: Of any unsigned integer type; written in C order.
    """
    width = bytes_needed(values)
    return (
        _FORM.pack(ColumnForm.PLAIN)
        + _WIDTH.pack(width)
        + (to_byte_planes(values, width) if width else b"")
    )


def decode_column(reader: ByteReader, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Read a column of any form.

    Args:
        reader: Stands at the column.
        count: Number of values n.
        dtype: Integer type of the result; values that do not fit are refused.

    Raises:
        BatchDecodeError: The column is malformed or too large.
    """
    reader.memory.spend(count * _UINT64.itemsize)
    (form,) = reader.unpack(_FORM)
    if form == ColumnForm.DELTA:
        first, width = reader.unpack(_DELTA_HEAD)
        if not width:  # many columns hold one value throughout
            return _repeated(first, count, dtype, reader.name)
        return _narrowed(_undo_delta(reader, first, width, count), dtype, reader.name)
    if form == ColumnForm.PLAIN:
        return _decode_plain(reader, count, dtype)
    if form == ColumnForm.DICTIONARY:
        return _narrowed(_decode_dictionary(reader, count), dtype, reader.name)
    raise BatchDecodeError(f"{reader.name} has a column of the unknown form {form}")


def _as_uint64(values: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    if values.dtype == _UINT64:
        return values.astype(np.uint64, copy=False)
    return values.astype(np.int64).view(np.uint64)


def _encode_delta(values: NDArray[np.uint64]) -> bytes:
    if len(values) == 0:
        return _DELTA_HEAD.pack(0, 0)
    signed = (values[1:] - values[:-1]).view(np.int64)
    zigzag = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    width = bytes_needed(zigzag)
    head = _DELTA_HEAD.pack(int(values[0]), width)
    return head + to_byte_planes(zigzag, width) if width else head


def _decode_delta(reader: ByteReader, count: int) -> NDArray[np.uint64]:
    first, width = reader.unpack(_DELTA_HEAD)
    return _undo_delta(reader, first, width, count)


def _undo_delta(reader: ByteReader, first: int, width: int, count: int) -> NDArray[np.uint64]:
    if not _checked_width(width, _UINT64.itemsize, reader.name) or count <= 1:
        return np.full(count, first, np.uint64)
    planes = reader.take(width * (count - 1))
    values = np.empty(count, np.uint64)
    values[0] = first
    if width == 1:
        values[1:] = _DIFFERENCES[np.frombuffer(planes, np.uint8)]
    else:
        zigzag = from_byte_planes(planes, width, _UINT64)
        sign = zigzag & _ONE
        np.negative(sign, out=sign)
        zigzag >>= _ONE
        np.bitwise_xor(zigzag, sign, out=values[1:])
    np.add.accumulate(values, out=values)
    return values


def _decode_plain(reader: ByteReader, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    (width,) = reader.unpack(_WIDTH)
    if np.issubdtype(dtype, np.unsignedinteger):  # read in place: counts are large
        if not _checked_width(width, dtype.itemsize, reader.name):
            return np.zeros(count, dtype)
        return from_byte_planes(reader.take(width * count), width, dtype)
    if not _checked_width(width, _UINT64.itemsize, reader.name):
        return np.zeros(count, dtype)
    return _narrowed(
        from_byte_planes(reader.take(width * count), width, _UINT64), dtype, reader.name
    )


def _decode_dictionary(reader: ByteReader, count: int) -> NDArray[np.uint64]:
    (size,) = reader.unpack(_COUNT)
    if not 0 < size <= count:
        raise BatchDecodeError(f"{reader.name} has a dictionary of {size} for {count} values")
    distinct = _decode_delta(reader, size)
    index = _decode_delta(reader, count)
    if int(index.max()) >= size:
        raise BatchDecodeError(f"{reader.name} has an index outside of its dictionary")
    return distinct[index]


def _checked_width(width: int, largest: int, name: str) -> int:
    if width > largest:
        raise BatchDecodeError(f"{name} has a column of {width} bytes per value, over {largest}")
    return width


def _repeated(value: int, count: int, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    if dtype == _UINT64:
        return np.full(count, value, dtype)
    signed = value - (1 << 64) if value >> 63 else value
    lowest, highest = _bounds(dtype)
    if count and not lowest <= signed <= highest:
        raise _does_not_fit(dtype, name)
    return np.full(count, signed if count else 0, dtype)


def _narrowed(values: NDArray[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    if dtype == _UINT64:
        return values
    signed = values.view(np.int64)
    if dtype.itemsize == _UINT64.itemsize:
        return signed
    lowest, highest = _bounds(dtype)
    if signed.size and not (
        lowest <= np.minimum.reduce(signed) and np.maximum.reduce(signed) <= highest
    ):
        raise _does_not_fit(dtype, name)
    return signed.astype(dtype)


@cache
def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    bounds = np.iinfo(dtype)
    return int(bounds.min), int(bounds.max)


def _does_not_fit(dtype: np.dtype[Any], name: str) -> BatchDecodeError:
    return BatchDecodeError(f"{name} has a value that does not fit {dtype}")
