"""Tensor files for tests, written without torch, byte by byte as `torch.save` writes them."""

from __future__ import annotations

import struct
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

_STORAGES = {"int32": "IntStorage", "int64": "LongStorage", "float32": "FloatStorage"}


def text(value: str) -> bytes:
    """Text as a pickle holds it."""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def pickled(  # noqa: PLR0911 (one return per type)
    value: Any,
    arrays: list[np.ndarray[Any, Any]],
) -> bytes:
    """Operations that build a value; arrays are collected."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        kind = _STORAGES[value.dtype.name]
        key = text(str(len(arrays) - 1))
        storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + key + text("cpu")
        strides = tuple(stride // value.itemsize for stride in value.strides)
        return (
            b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + pickled(value.size, arrays) + b"tQ"
            + b"K\x00" + pickled(value.shape, arrays) + pickled(strides, arrays)
            + b"\x89ccollections\nOrderedDict\n)Rt" + b"R"
        )  # fmt: skip
    if isinstance(value, dict):
        items = b"".join(pickled(k, arrays) + pickled(v, arrays) for k, v in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(pickled(item, arrays) for item in value) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(pickled(item, arrays) for item in value) + b"t"
    if isinstance(value, str):
        return text(value)
    if value is None:
        return b"N"
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def write_tensors(
    path: Path,
    value: Any,
    *,
    pickle: bytes | None = None,
    compressed: bool = False,
) -> Path:
    """Write a tensor file.

    Args:
        path: Where.
        value: Numbers, text, None, lists, tuples, dictionaries and arrays.
        pickle: In the place of the value's.
        compressed: Whether the archive's entries are.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    body = b"\x80\x02" + pickled(value, arrays) + b"."
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("archive/data.pkl", body if pickle is None else pickle)
        archive.writestr("archive/byteorder", "little")
        for number, array in enumerate(arrays):
            archive.writestr(f"archive/data/{number}", np.ascontiguousarray(array).tobytes())
    return path
