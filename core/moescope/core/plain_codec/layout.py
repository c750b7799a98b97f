"""How the bytes of a plain value are laid out: a prefix, and one zstd frame of head and bodies."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"MSPV"
VERSION: Final = 1
DEEPEST: Final = 24
"""Containers and objects inside each other."""
PREFIX: Final = struct.Struct("<4sBQI")
"""Magic, version, bytes of the frame once decompressed, and how many of them are the head."""
ALIGNMENT: Final = 8
"""The head and each array are padded to a multiple of it."""
PLAIN: Final = frozenset({type(None), bool, int, float, str})
"""What JSON has itself; everything else is a list that begins with a sign."""
DTYPES: Final = frozenset(
    {"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"}
)
DIMENSIONS: Final = 8
TUPLE, LIST, DICT, FROZENSET, SHARED, ARRAY, BYTES, OBJECT = range(8)
"""Signs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLimits:
    """Largest accepted sizes, checked before anything of that size is allocated.

    Attributes:
        inflated_bytes: Of the whole value, decompressed.
        head_bytes: Of its JSON head, whose objects take many times as much memory.
    """

    inflated_bytes: int = 512 << 20
    head_bytes: int = 64 << 20


DEFAULT_LIMITS: Final = PlainLimits()
