"""The fixed parts of wire format version 1: envelope, section heads and identifiers."""

from __future__ import annotations

import struct
from enum import IntEnum

MAGIC = b"MSRB"
MAJOR_VERSION = 1
MINOR_VERSION = 0

ENVELOPE = struct.Struct("<4sBBHQQ")
"""Magic, major version, minor version, length of the node's name, incarnation, sequence."""
SECTION_HEAD = struct.Struct("<HBBII")
"""Section id, encoding, parameter, stored length, inflated length."""
CHECKSUM = struct.Struct("<I")

SKIPPABLE = 0x8000
"""Bit of a section id: a reader that does not know the section skips it."""
UNSEEN_ROWS = struct.Struct("<Q")
PLACEMENT_HEAD = struct.Struct("<QH")
"""Version and ranks."""


class SectionId(IntEnum):
    """The sections of version 1, in the order in which they are written."""

    HEADER = 1
    REQUESTS = 2
    TOKENS = 3
    RELABELLING = 4
    GAPS = 5
    TOP1 = 6
    WEIGHTS = 7
    ENTROPY = 8
    MARGIN = 9
    DROPPED = 10
    TOKEN_BLOCKS = 11
    TIME_BLOCKS = 12
    UNSEEN = SKIPPABLE | 1
    PLACEMENT = SKIPPABLE | 2


class Encoding(IntEnum):
    """How a section's bytes are stored."""

    STORED = 0
    ZSTD = 1
