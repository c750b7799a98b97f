"""Bytes of wire format version 1 → routing batch, whatever the bytes are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import crc32c

from moescope.core.batch import Requests, RoutingBatch
from moescope.core.batch_checks import BatchError
from moescope.core.wire.blocks import decode_time_blocks, decode_token_blocks
from moescope.core.wire.errors import BatchDecodeError, DecodeReason
from moescope.core.wire.header import Identity, decode_header
from moescope.core.wire.header_additions import with_placement, with_unseen_rows
from moescope.core.wire.layout import CHECKSUM, ENVELOPE, MAGIC, MAJOR_VERSION, SectionId
from moescope.core.wire.limits import DEFAULT_LIMITS, Budget, Limits, check_limit
from moescope.core.wire.reader import ByteReader
from moescope.core.wire.route_sections import take_routes
from moescope.core.wire.rows import decode_requests, decode_tokens
from moescope.core.wire.sections import Section, inflate, split_sections

if TYPE_CHECKING:
    from moescope.core.batch import BatchHeader, TimeBlocks, TokenBlocks
    from moescope.core.wire.header import RowCounts


def decode_batch(
    data: bytes | bytearray | memoryview, limits: Limits = DEFAULT_LIMITS
) -> RoutingBatch:
    """Decode and validate a batch; its arrays may be read-only views.

    Args:
        data: One whole record.
        limits: What is refused before it is allocated.

    Raises:
        BatchDecodeError: For every byte string that is no acceptable batch; nothing else is
            raised.
    """
    view = memoryview(data)
    check_limit("bytes", len(view), limits.compressed_bytes)
    identity, start = _read_envelope(view)
    end = len(view) - CHECKSUM.size
    if end < start:
        raise BatchDecodeError("The batch ends before its checksum")
    if CHECKSUM.unpack(view[end:])[0] != crc32c.crc32c(view[:end]):
        raise BatchDecodeError("The batch's checksum does not match", why="It was damaged.")
    try:
        return _Decoder(split_sections(view[start:end], limits), limits).batch(identity)
    except BatchError as error:
        raise BatchDecodeError(error.what, why="The columns contradict each other.") from error


def peek_identity(data: bytes | bytearray | memoryview) -> tuple[str, int, int]:
    """Read (node, incarnation, sequence) alone; the checksum is not verified.

    Raises:
        BatchDecodeError: The bytes do not begin as a batch of version 1 does.
    """
    identity, _ = _read_envelope(memoryview(data))
    return identity.node, identity.incarnation, identity.sequence


def _read_envelope(view: memoryview) -> tuple[Identity, int]:
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise BatchDecodeError("The bytes are no routing batch", why="They begin otherwise.")
    if len(view) > len(MAGIC) and view[len(MAGIC)] != MAJOR_VERSION:
        raise BatchDecodeError(
            f"The batch has wire format version {view[len(MAGIC)]}, not {MAJOR_VERSION}",
            reason=DecodeReason.UNKNOWN_VERSION,
            next_step="Upgrade the store and the processors before the agents.",
        )
    if len(view) < ENVELOPE.size:
        raise BatchDecodeError("The batch ends within its envelope")
    _, _, _, length, incarnation, sequence = ENVELOPE.unpack(view[: ENVELOPE.size])
    end = ENVELOPE.size + length
    if len(view) < end:
        raise BatchDecodeError("The batch ends within the name of its node")
    try:
        node = str(view[ENVELOPE.size : end], "utf-8")
    except UnicodeDecodeError as error:
        raise BatchDecodeError("The name of the node is not UTF-8") from error
    return Identity(node, incarnation, sequence), end


class _Decoder:
    def __init__(self, sections: dict[SectionId, Section], limits: Limits) -> None:
        self._sections = sections
        self._limits = limits
        self._memory = Budget("bytes in memory", limits.inflated_bytes)
        self._strings = Budget("bytes of names", limits.string_bytes)
        for section in sections.values():
            self._memory.spend(section.inflated_length)

    def batch(self, identity: Identity) -> RoutingBatch:
        header, counts = decode_header(self._reader(SectionId.HEADER), identity, self._limits)
        if SectionId.UNSEEN in self._sections:
            header = with_unseen_rows(header, self._reader(SectionId.UNSEEN))
        if SectionId.PLACEMENT in self._sections:
            header = with_placement(header, self._reader(SectionId.PLACEMENT))
        requests = Requests()
        if counts.requests:
            requests = decode_requests(self._reader(SectionId.REQUESTS), counts.requests)
        tokens = routes = None
        if counts.tokens:
            tokens = decode_tokens(self._reader(SectionId.TOKENS), counts.tokens)
            routes = take_routes(self._sections, header, counts.tokens, self._memory)
        token_blocks, time_blocks = self._blocks(header, counts)
        if self._sections:
            raise BatchDecodeError(f"{next(iter(self._sections.values())).title} belongs to no row")
        return RoutingBatch(
            header=header,
            requests=requests,
            tokens=tokens,
            routes=routes,
            token_blocks=token_blocks,
            time_blocks=time_blocks,
        )

    def _blocks(
        self, header: BatchHeader, counts: RowCounts
    ) -> tuple[TokenBlocks | None, TimeBlocks | None]:
        token_blocks = time_blocks = None
        if counts.token_blocks:
            reader = self._reader(SectionId.TOKEN_BLOCKS)
            token_blocks = decode_token_blocks(reader, header, counts.token_blocks)
        if counts.time_blocks:
            reader = self._reader(SectionId.TIME_BLOCKS)
            time_blocks = decode_time_blocks(reader, header, counts.time_blocks)
        return token_blocks, time_blocks

    def _reader(self, identifier: SectionId) -> ByteReader:
        section = self._sections.pop(identifier, None)
        if section is None:
            raise BatchDecodeError(f"The section {identifier.name} is missing")
        if section.parameter:
            raise BatchDecodeError(f"{section.title} has the parameter {section.parameter}")
        return ByteReader(inflate(section), section.title, self._memory, self._strings)
