"""Partition state to bytes and back: JSON for what is small, raw arrays for counts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import zstandard

from moescope.core.errors import InternalError

MAGIC = b"MSPS\x01"


def pack_state(values: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]]) -> bytes:
    """Serialise JSON-able values and arrays, compressed."""
    described = {
        name: [array.dtype.str, list(array.shape)] for name, array in sorted(arrays.items())
    }
    head = json.dumps({"values": values, "arrays": described}, sort_keys=True).encode()
    body = b"".join(np.ascontiguousarray(arrays[name]).tobytes() for name in sorted(arrays))
    raw = len(head).to_bytes(8, "little") + head + body
    return MAGIC + zstandard.ZstdCompressor(level=1).compress(raw)


def unpack_state(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Read what :func:`pack_state` wrote.

    Raises:
        InternalError: The bytes are not such a state.
    """
    if not data.startswith(MAGIC):
        raise InternalError(
            "A partition's saved state cannot be read.",
            why="It was written by another version of moescope, or is damaged.",
            next_step="Restore the store from its export, or rebuild it from the logs.",
        )
    raw = zstandard.ZstdDecompressor().decompress(data[len(MAGIC) :])
    size = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8 : 8 + size])
    arrays = {}
    offset = 8 + size
    for name, (dtype, shape) in head["arrays"].items():
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(raw, dtype, count, offset).reshape(shape).copy()
        offset += arrays[name].nbytes
    return head["values"], arrays
