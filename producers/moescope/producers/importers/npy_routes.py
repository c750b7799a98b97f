"""Routed experts as engines send them: base64 of a `.npy` file, or nested lists."""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch_checks import MAX_LAYERS, MAX_TOP_K
from moescope.core.vocabulary import MAX_EXPERTS
from moescope.producers.importers.errors import RejectedLineError
from moescope.producers.importers.json_tables import (
    NoIntegersError,
    RaggedListsError,
    integers_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_TOKENS = 1 << 22
_MAX_HEADER_BYTES = 4096
_MAGIC_BYTES = 8
_AXES = 3
_DTYPES = {name: np.dtype(name) for name in ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<i8")}
_HEADER_FIELDS = (
    re.compile(r"'descr': *'([^']{1,8})'"),
    re.compile(r"'fortran_order': *(True|False)"),
    re.compile(r"'shape': *\(((?:[0-9]{1,30}, ?){0,3}(?:[0-9]{1,30})?)\)"),
)


_BYTE_EXPERTS = 256


def decode_routes(
    value: Any,
    name: str,
    *,
    experts: int | None = None,
) -> NDArray[np.int64]:
    """Expert ids of consecutive tokens.

    Args:
        value: Text, or lists of lists of lists of integers.
        name: Of the field, for messages.
        experts: E, if known: ids of one byte cannot name more than 256 experts.

    Returns:
        int64 [T, L, k]; an id may be −1, which some engines write for "unknown".

    Raises:
        RejectedLineError: The value is neither, or its shape, type or ids are impossible.
    """
    routes = _from_text(value, name) if isinstance(value, str) else _from_lists(value, name)
    if routes.ndim != _AXES:
        raise RejectedLineError(f"{name} has no shape [tokens, layers, k]", str(routes.shape))
    check_width(routes.dtype, experts, name)
    _, layers, top_k = routes.shape
    if not 1 <= layers <= MAX_LAYERS or not 1 <= top_k <= MAX_TOP_K:
        raise RejectedLineError(f"{name} has an impossible shape", str(routes.shape))
    if routes.size and (int(routes.min()) < -1 or int(routes.max()) > MAX_EXPERTS):
        raise RejectedLineError(f"{name} has an id that is not 0 to {MAX_EXPERTS}")
    return routes.astype(np.int64)


def check_width(dtype: np.dtype[Any], experts: int | None, name: str) -> None:
    """Refuse ids that overflowed: some engines sent one byte per id whatever the model.

    Raises:
        RejectedLineError: E experts cannot be named by such ids.
    """
    if dtype.itemsize == 1 and experts is not None and experts > _BYTE_EXPERTS:
        raise RejectedLineError(f"{name} has ids of 8 bits", f"{experts} experts need 16")


def decode_base64(text: str, name: str) -> bytes:
    """Bytes of base64 text.

    Raises:
        RejectedLineError: It is none.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RejectedLineError(f"{name} is no base64", str(error)) from error


def _from_text(text: str, name: str) -> NDArray[Any]:
    raw = decode_base64(text, name)
    dtype, shape, start = _header(raw, name)
    body = raw[start:]
    size = math.prod(shape)
    if len(shape) == _AXES and shape[0] > MAX_TOKENS:
        raise RejectedLineError(f"{name} has too many tokens", str(shape))
    if size * dtype.itemsize != len(body):
        raise RejectedLineError(
            f"{name} does not hold what its header says", f"{shape} in {len(body)} bytes"
        )
    return np.frombuffer(body, dtype).reshape(shape)


def _header(raw: bytes, name: str) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Type, shape and first data byte of a `.npy` file.

    The header is read by pattern: numpy's own reader evaluates it as Python, and raises whatever
    that raises.
    """
    length_bytes = {1: 2, 2: 4}.get(raw[6] if len(raw) > _MAGIC_BYTES else 0)
    if not raw.startswith(b"\x93NUMPY") or length_bytes is None:
        raise RejectedLineError(f"{name} is no .npy file of version 1 or 2")
    begin = _MAGIC_BYTES + length_bytes
    length = int.from_bytes(raw[_MAGIC_BYTES:begin], "little")
    text = raw[begin : begin + length].decode("latin-1")
    kind, order, shape = (pattern.search(text) for pattern in _HEADER_FIELDS)
    if length > _MAX_HEADER_BYTES or len(text) < length or not (kind and order and shape):
        raise RejectedLineError(f"{name} has a damaged .npy header", text[:80])
    dtype = _DTYPES.get(kind[1])
    if dtype is None or order[1] != "False":
        fortran = ", column by column" if order[1] == "True" else ""
        raise RejectedLineError(f"{name} has an unexpected type", f"{kind[1]}{fortran}")
    lengths = [part.strip() for part in shape[1].split(",") if part.strip()]
    return dtype, tuple(int(part) for part in lengths), begin + length


def _from_lists(value: Any, name: str) -> NDArray[Any]:
    if not isinstance(value, list):
        raise RejectedLineError(f"{name} is neither text nor a list", type(value).__name__)
    try:
        return integers_of(value)
    except RaggedListsError as error:
        raise RejectedLineError(f"{name} is ragged", str(error)) from error
    except NoIntegersError as error:
        raise RejectedLineError(f"{name} holds something else than integers", str(error)) from error
