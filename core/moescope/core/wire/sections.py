"""Sections: pieces of a batch that are stored or compressed one by one."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zstandard

from moescope.core.wire.errors import BatchDecodeError, DecodeReason
from moescope.core.wire.layout import SECTION_HEAD, SKIPPABLE, Encoding, SectionId
from moescope.core.wire.limits import check_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moescope.core.wire.limits import Limits

_PLANE_MIN_MATCH = 7
_PLANE_HASH_LOG = 6
_SECTIONS = {int(each): each for each in SectionId}
_ENCODINGS = {int(each): each for each in Encoding}
_LOCAL = threading.local()


class SectionWriter:
    """Compresses sections and puts their heads before them.

    Gap planes hold hardly any repeats, so their search for matches is kept short: what is
    left is entropy coding, at a multiple of the speed.

    Args:
        level: Of zstd, at least 1.
    """

    def __init__(self, level: int) -> None:
        self._columns = zstandard.ZstdCompressor(level=level)
        self._planes = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters.from_level(
                level,
                min_match=_PLANE_MIN_MATCH,
                hash_log=_PLANE_HASH_LOG,
                write_checksum=False,
            )
        )
        self.pieces: list[bytes] = []

    def add_columns(self, section: SectionId, payload: bytes) -> None:
        """Add a section of columns or text."""
        self._add(section, 0, payload, self._columns)

    def add_planes(self, section: SectionId, parameter: int, payload: bytes | memoryview) -> None:
        """Add a section of planes; its parameter says how wide the values are."""
        self._add(section, parameter, payload, self._planes)

    def _add(
        self,
        section: SectionId,
        parameter: int,
        payload: bytes | memoryview,
        compressor: zstandard.ZstdCompressor,
    ) -> None:
        compressed = compressor.compress(payload)
        encoding, stored = Encoding.ZSTD, compressed
        if len(compressed) >= len(payload):
            encoding, stored = Encoding.STORED, bytes(payload)
        self.pieces += [
            SECTION_HEAD.pack(section, encoding, parameter, len(stored), len(payload)),
            stored,
        ]


@dataclass(frozen=True, slots=True)
class Section:
    """A section that was found, and not yet inflated."""

    section: SectionId
    encoding: Encoding
    parameter: int
    stored: memoryview
    inflated_length: int

    @property
    def title(self) -> str:
        """How error messages call it."""
        return f"The section {self.section.name}"


def split_sections(body: memoryview, limits: Limits) -> dict[SectionId, Section]:
    """Find the sections and check their declared sizes; nothing is inflated.

    Raises:
        BatchDecodeError: Heads and lengths do not fit together, a section is unknown and may
            not be skipped, or the sizes are over the limits.
    """
    found: dict[SectionId, Section] = {}
    last, inflated, count = 0, 0, 0
    for identifier, encoding, parameter, stored, inflated_length in _walk(body):
        count += 1
        check_limit("sections", count, limits.sections)
        if identifier <= last:
            raise BatchDecodeError(f"Section {identifier} follows section {last}")
        last = identifier
        section = _known_section(identifier)
        if section is None:
            continue
        inflated += inflated_length
        check_limit("inflated bytes", inflated, limits.inflated_bytes)
        known = _ENCODINGS.get(encoding)
        if known is None:
            raise BatchDecodeError(f"The section {section.name} has the encoding {encoding}")
        found[section] = Section(section, known, parameter, stored, inflated_length)
    return found


def inflate(section: Section) -> bytes | memoryview:
    """Return a section's payload, exactly as long as its head declares.

    Raises:
        BatchDecodeError: The stored bytes do not give that.
    """
    if section.encoding is Encoding.STORED:
        if len(section.stored) != section.inflated_length:
            raise BatchDecodeError(f"{section.title} is stored with two different lengths")
        return section.stored
    try:
        # python-zstandard allocates what the frame declares, whatever max_output_size says.
        if zstandard.frame_content_size(section.stored) != section.inflated_length:
            raise BatchDecodeError(f"{section.title} has a zstd frame of another size")
        return _decompressor().decompress(section.stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BatchDecodeError(f"{section.title} is no valid zstd frame", why=str(error)) from error


def _decompressor() -> zstandard.ZstdDecompressor:
    """One per thread: making one costs more than using it, and two threads must not share it."""
    known: zstandard.ZstdDecompressor | None = getattr(_LOCAL, "decompressor", None)
    if known is None:
        known = _LOCAL.decompressor = zstandard.ZstdDecompressor()
    return known


def _walk(body: memoryview) -> Iterator[tuple[int, int, int, memoryview, int]]:
    position = 0
    while position < len(body):
        start = position + SECTION_HEAD.size
        if start > len(body):
            raise BatchDecodeError(f"{len(body) - position} bytes follow the last section")
        identifier, encoding, parameter, length, inflated = SECTION_HEAD.unpack(
            body[position:start]
        )
        position = start + length
        if position > len(body):
            raise BatchDecodeError(f"Section {identifier} is longer than the batch")
        yield identifier, encoding, parameter, body[start:position], inflated


def _known_section(identifier: int) -> SectionId | None:
    """Tell a known section from one to be skipped."""
    known = _SECTIONS.get(identifier)
    if known is not None:
        return known
    if identifier & SKIPPABLE:
        return None
    raise BatchDecodeError(
        f"The batch has the section {identifier}, which this reader does not know",
        reason=DecodeReason.UNKNOWN_VERSION,
        next_step="Upgrade the store and the processors before the agents.",
    )
