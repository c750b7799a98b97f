"""Unsigned integers as byte planes: all low bytes, then all second bytes, and so on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def bytes_needed(values: NDArray[np.unsignedinteger[Any]]) -> int:
    """Return how many low bytes hold every value; 0 when all are zero."""
    return (int(values.max(initial=0)).bit_length() + 7) // 8


def to_byte_planes(values: NDArray[np.unsignedinteger[Any]], width: int) -> bytes:
    """Lay the `width` low bytes of each value out in planes."""
    if width == values.itemsize == 1:
        return values.tobytes()
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    columns = little.reshape(-1, 1).view(np.uint8)
    return np.ascontiguousarray(columns[:, :width].T).tobytes()


def from_byte_planes(
    planes: bytes | memoryview, width: int, dtype: np.dtype[Any]
) -> NDArray[np.unsignedinteger[Any]]:
    """Undo `to_byte_planes`.

    Args:
        planes: A multiple of `width` bytes; not copied when `dtype` has one byte.
        width: At least 1, and at most the size of `dtype`.
        dtype: An unsigned integer type.

    Returns:
        1-d array of `dtype`.
    """
    flat = np.frombuffer(planes, np.uint8)
    if dtype.itemsize == 1:
        return flat
    columns = flat.reshape(width, -1)
    little = np.zeros((columns.shape[1], dtype.itemsize), np.uint8)
    little[:, :width] = columns.T
    return little.view(dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(-1)
