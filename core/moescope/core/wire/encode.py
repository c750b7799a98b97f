"""Routing batch → bytes of wire format version 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import crc32c

from moescope.core.wire.blocks import encode_time_blocks, encode_token_blocks
from moescope.core.wire.header import encode_header
from moescope.core.wire.header_additions import encode_header_additions
from moescope.core.wire.layout import (
    CHECKSUM,
    ENVELOPE,
    MAGIC,
    MAJOR_VERSION,
    MINOR_VERSION,
    SectionId,
)
from moescope.core.wire.route_sections import add_routes
from moescope.core.wire.rows import encode_requests, encode_tokens
from moescope.core.wire.sections import SectionWriter

if TYPE_CHECKING:
    from moescope.core.batch import BatchHeader, RoutingBatch


def encode_batch(batch: RoutingBatch, *, level: int = 1) -> bytes:
    """Encode a batch.

    Args:
        batch: Valid, since it was constructed.
        level: Of zstd, at least 1. Higher levels cost time and hardly make ids smaller.
    """
    writer = SectionWriter(level)
    writer.add_columns(SectionId.HEADER, encode_header(batch))
    if len(batch.requests):
        writer.add_columns(SectionId.REQUESTS, encode_requests(batch.requests))
    if batch.tokens is not None and batch.routes is not None:
        writer.add_columns(SectionId.TOKENS, encode_tokens(batch.tokens))
        add_routes(writer, batch.routes)
    if batch.token_blocks is not None:
        writer.add_columns(SectionId.TOKEN_BLOCKS, encode_token_blocks(batch.token_blocks))
    if batch.time_blocks is not None:
        writer.add_columns(SectionId.TIME_BLOCKS, encode_time_blocks(batch.time_blocks))
    for section, payload in encode_header_additions(batch.header):
        writer.add_columns(section, payload)
    body = b"".join([_envelope(batch.header), *writer.pieces])
    return body + CHECKSUM.pack(crc32c.crc32c(body))


def _envelope(header: BatchHeader) -> bytes:
    node = header.node.encode()
    return (
        ENVELOPE.pack(
            MAGIC, MAJOR_VERSION, MINOR_VERSION, len(node), header.incarnation, header.sequence
        )
        + node
    )
