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
    flat = values.reshape(-1)
    planes = np.empty((width, len(flat)), np.uint8)
    for plane in range(width):
        planes[plane] = flat >> flat.dtype.type(8 * plane)
    return planes.tobytes()


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
    values: NDArray[np.unsignedinteger[Any]] = columns[0].astype(dtype)
    for plane in range(1, width):
        values |= columns[plane].astype(dtype) << dtype.type(8 * plane)
    return values
