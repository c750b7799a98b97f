"""Taking encoded batches apart and putting them together again, with faults."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import crc32c
import zstandard

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

ENVELOPE_BYTES = 24
_HEAD = struct.Struct("<HBBII")
STORED, ZSTD = 0, 1


@dataclass(frozen=True)
class RawSection:
    """A section as its bytes say it; the lengths may lie."""

    identifier: int
    encoding: int
    parameter: int
    stored: bytes
    inflated_length: int

    def payload(self) -> bytes:
        """The inflated bytes."""
        if self.encoding == STORED:
            return self.stored
        return zstandard.ZstdDecompressor().decompress(self.stored)

    def with_payload(self, payload: bytes) -> RawSection:
        """The same section with other content, stored."""
        return replace(self, encoding=STORED, stored=payload, inflated_length=len(payload))


def take_apart(data: bytes) -> tuple[bytes, list[RawSection]]:
    """Split a valid batch into its envelope and its sections."""
    position = ENVELOPE_BYTES + int.from_bytes(data[6:8], "little")
    envelope, sections = data[:position], []
    while position < len(data) - 4:
        identifier, encoding, parameter, length, inflated = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        stored = data[position : position + length]
        sections.append(RawSection(identifier, encoding, parameter, stored, inflated))
        position += length
    return envelope, sections


def put_together(envelope: bytes, sections: Sequence[RawSection]) -> bytes:
    """Build a batch with a right checksum, whatever its parts are."""
    pieces = [envelope]
    for section in sections:
        pieces.append(
            _HEAD.pack(
                section.identifier,
                section.encoding,
                section.parameter,
                len(section.stored),
                section.inflated_length,
            )
        )
        pieces.append(section.stored)
    return sealed(b"".join(pieces))


def sealed(body: bytes) -> bytes:
    """Append the checksum."""
    return body + struct.pack("<I", crc32c.crc32c(body))


def replaced(data: bytes, identifier: int, **changes: object) -> bytes:
    """Change fields of one section, and seal the batch again."""
    envelope, sections = take_apart(data)
    return put_together(
        envelope,
        [
            replace(section, **changes) if section.identifier == identifier else section  # type: ignore[arg-type]  # any field, any value
            for section in sections
        ],
    )


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flip, overwrite, insert, delete, repeat or cut off some bytes."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        start = rng.randrange(len(raw) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 64))
        kind = rng.randrange(6)
        if kind == 0 and start < len(raw):
            raw[start] ^= 1 << rng.randrange(8)
        elif kind == 1:
            raw[start : start + length] = rng.choice((b"\x00", b"\xff", b"\x7f")) * length
        elif kind == 2:
            raw[start:start] = rng.randbytes(length)
        elif kind == 3:
            del raw[start : start + length]
        elif kind == 4:
            raw[start:start] = raw[start : start + length]
        elif rng.randrange(4) == 0:
            del raw[start:]
    return bytes(raw)


def mutated_sections(rng: random.Random, data: bytes) -> bytes:
    """Damage a batch behind its checksum: in heads, order and inflated payloads."""
    envelope, sections = take_apart(data)
    target = rng.randrange(len(sections))
    section = sections[target]
    kind = rng.randrange(8)
    if kind <= 3:
        sections[target] = section.with_payload(mutated_bytes(rng, section.payload()))
    elif kind == 4:
        length = rng.choice((0, 1, section.inflated_length + 1, 2**31, 2**32 - 1))
        sections[target] = replace(section, inflated_length=length)
    elif kind == 5:
        changes = {
            "identifier": rng.choice((0, 1, 5, 12, 13, 0x8001, 0xFFFF)),
            "encoding": rng.randrange(4),
            "parameter": rng.choice((0, 1, 2, 3, 4, 8, 16, 255)),
        }
        name = rng.choice(sorted(changes))
        sections[target] = replace(section, **{name: changes[name]})  # type: ignore[arg-type]  # any field, any value
    elif kind == 6:
        del sections[target]
    else:
        sections.insert(rng.randrange(len(sections) + 1), section)
    return put_together(envelope, sections)
