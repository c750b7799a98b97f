from __future__ import annotations

import pickle
import random
import struct
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zstandard
from support.batches import make_batch, make_heartbeat
from support.wire_bytes import (
    ZSTD,
    RawSection,
    put_together,
    replaced,
    sealed,
    take_apart,
)

from moescope.core.batch_equality import batches_equal
from moescope.core.wire import (
    BatchDecodeError,
    DecodeReason,
    Limits,
    decode_batch,
    encode_batch,
    peek_identity,
)
from moescope.core.wire.layout import SectionId

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER_COUNTS_OFFSET = 8 + 8 + 8 + 8 + 16 + 32 + 6
"""Of E, k, L, labels (u16 each), R, T, B, S (u32 each) within the header section."""


@pytest.fixture(scope="module")
def valid() -> bytes:
    """A small batch."""
    batch = make_batch(1, tokens=20, layers=2, experts=16, top_k=3, requests=2)
    return encode_batch(batch)


def reason_of(data: bytes, limits: Limits | None = None) -> DecodeReason:
    """The reason for which bytes are refused."""
    with pytest.raises(BatchDecodeError) as caught:
        decode_batch(data, limits or Limits())
    return caught.value.reason


def with_header_field(data: bytes, layout: str, offset: int, value: int) -> bytes:
    """Overwrite a number of the header section."""
    envelope, sections = take_apart(data)
    payload = bytearray(sections[0].payload())
    struct.pack_into(layout, payload, HEADER_COUNTS_OFFSET + offset, value)
    return put_together(envelope, [sections[0].with_payload(bytes(payload)), *sections[1:]])


def test_every_truncation_is_malformed(valid: bytes) -> None:
    """A cut record is refused wherever it was cut."""
    for end in range(len(valid)):
        assert reason_of(valid[:end]) is DecodeReason.MALFORMED


def test_every_damaged_byte_is_refused(valid: bytes) -> None:
    """The checksum covers every byte; only the version has a reason of its own."""
    rng = random.Random(1)
    for position in range(len(valid)):
        damaged = bytearray(valid)
        damaged[position] ^= 1 << rng.randrange(8)
        expected = DecodeReason.UNKNOWN_VERSION if position == 4 else DecodeReason.MALFORMED
        assert reason_of(bytes(damaged)) is expected


def test_trailing_bytes_are_malformed(valid: bytes) -> None:
    """A second record glued to the first is not silently lost."""
    assert reason_of(valid + b"x") is DecodeReason.MALFORMED
    assert reason_of(sealed(valid[:-4] + b"glued on")) is DecodeReason.MALFORMED


def test_other_major_version_is_named(valid: bytes) -> None:
    """An upgrade in the wrong order is told apart from damage."""
    assert reason_of(sealed(valid[:4] + b"\x02" + valid[5:-4])) is DecodeReason.UNKNOWN_VERSION


def test_minor_version_is_ignored(valid: bytes) -> None:
    """Compatible additions do not lock old readers out."""
    newer = sealed(valid[:5] + b"\x09" + valid[6:-4])
    assert batches_equal(decode_batch(newer), decode_batch(valid))


def test_unknown_sections_are_skipped_or_refused(valid: bytes) -> None:
    """Bit 15 of a section id decides what an old reader does with it."""
    envelope, sections = take_apart(valid)
    skippable = RawSection(0x8003, 7, 9, b"from the future", 2**32 - 1)
    mandatory = RawSection(13, 0, 0, b"from the future", 15)
    skipped = decode_batch(put_together(envelope, [*sections, skippable]))
    assert batches_equal(skipped, decode_batch(valid))
    refused = put_together(envelope, [*sections, mandatory])
    assert reason_of(refused) is DecodeReason.UNKNOWN_VERSION


@pytest.mark.parametrize("identifier", list(SectionId))
def test_missing_or_repeated_sections_are_malformed(valid: bytes, identifier: SectionId) -> None:
    """A batch has each of its parts once."""
    envelope, sections = take_apart(valid)
    for index, section in enumerate(sections):
        if section.identifier == identifier:
            missing = sections[:index] + sections[index + 1 :]
            repeated = sections[: index + 1] + sections[index:]
            assert reason_of(put_together(envelope, missing)) is DecodeReason.MALFORMED
            assert reason_of(put_together(envelope, repeated)) is DecodeReason.MALFORMED
            return
    stray = sorted(
        [*sections, RawSection(identifier, 0, 1, b"", 0)], key=lambda section: section.identifier
    )
    assert reason_of(put_together(envelope, stray)) is DecodeReason.MALFORMED


@pytest.mark.parametrize(
    ("layout", "offset", "value"),
    [
        ("<H", 0, 65_535),
        ("<H", 0, 0),
        ("<H", 2, 0),
        ("<H", 2, 17),
        ("<H", 2, 128),
        ("<H", 4, 1_000),
        ("<H", 6, 60_000),
        ("<I", 8, 65_536),
        ("<I", 12, 262_144),
        ("<I", 16, 65_536),
        ("<I", 20, 65_536),
    ],
)
def test_absurd_shapes_are_malformed(valid: bytes, layout: str, offset: int, value: int) -> None:
    """E, k, L, labels, R, T, B or S within the limits but not what the sections hold."""
    data = with_header_field(valid, layout, offset, value)
    tracemalloc.start()
    reason = reason_of(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason is DecodeReason.MALFORMED
    assert peak < 16 << 20


@pytest.mark.parametrize(
    "limits",
    [
        Limits(compressed_bytes=100),
        Limits(inflated_bytes=100),
        Limits(tokens=19),
        Limits(layers=1),
        Limits(top_k=2),
        Limits(experts=15),
        Limits(requests=1),
        Limits(string_bytes=10),
        Limits(sections=4),
    ],
)
def test_each_limit_is_kept(valid: bytes, limits: Limits) -> None:
    """Whoever runs a processor decides how large a batch may be."""
    assert reason_of(valid, limits) is DecodeReason.OVER_LIMITS


@pytest.mark.parametrize("offset", [8, 12, 16, 20])
def test_counts_over_the_limits_are_named(valid: bytes, offset: int) -> None:
    """R, T, B and S of 2^32 − 1 are over any limit."""
    assert reason_of(with_header_field(valid, "<I", offset, 2**32 - 1)) is DecodeReason.OVER_LIMITS


def bomb_with_honest_head(valid: bytes) -> bytes:
    """Many zeros as the gaps, and a head that declares 1 GiB of them."""
    frame = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 26))
    return replaced(valid, SectionId.GAPS, encoding=ZSTD, stored=frame, inflated_length=1 << 30)


def bomb_with_lying_head(valid: bytes) -> bytes:
    """64 MiB of zeros behind a head that declares the right length."""
    frame = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 26))
    return replaced(valid, SectionId.GAPS, encoding=ZSTD, stored=frame)


def bomb_without_declared_size(valid: bytes) -> bytes:
    """A frame that does not say how large it is."""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=False)
    frame = compressor.compress(bytes(1 << 26))
    return replaced(valid, SectionId.GAPS, encoding=ZSTD, stored=frame)


def bomb_with_lying_frame(valid: bytes) -> bytes:
    """A frame that declares the right size and inflates to more."""
    gaps = next(s for s in take_apart(valid)[1] if s.identifier == SectionId.GAPS)
    honest = zstandard.ZstdCompressor(level=1).compress(bytes(gaps.inflated_length))
    large = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(1 << 26))
    parameters = zstandard.get_frame_parameters(honest)
    assert parameters.content_size == gaps.inflated_length
    # magic, descriptor "single segment, 1-byte size", size; then the blocks of the large frame
    frame = honest[:4] + b"\x20" + bytes([gaps.inflated_length]) + large[6:]
    return replaced(valid, SectionId.GAPS, encoding=ZSTD, stored=frame)


def frame_of_many_gigabytes(valid: bytes) -> bytes:
    """A frame header that declares 2^62 bytes."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**62) + b"\x01\x00\x00"
    return replaced(valid, SectionId.GAPS, encoding=ZSTD, stored=frame)


def frame_with_more_behind(valid: bytes) -> bytes:
    """Two frames in one section."""
    gaps = next(s for s in take_apart(valid)[1] if s.identifier == SectionId.GAPS)
    frame = zstandard.ZstdCompressor(level=1).compress(bytes(gaps.inflated_length))
    return replaced(valid, SectionId.GAPS, encoding=ZSTD, stored=frame * 2)


@pytest.mark.parametrize(
    ("make_bomb", "reason"),
    [
        (bomb_with_honest_head, DecodeReason.OVER_LIMITS),
        (bomb_with_lying_head, DecodeReason.MALFORMED),
        (bomb_without_declared_size, DecodeReason.MALFORMED),
        (bomb_with_lying_frame, DecodeReason.MALFORMED),
        (frame_of_many_gigabytes, DecodeReason.MALFORMED),
        (frame_with_more_behind, DecodeReason.MALFORMED),
    ],
)
def test_bombs_do_not_explode(
    valid: bytes, make_bomb: Callable[[bytes], bytes], reason: DecodeReason
) -> None:
    """No frame makes a reader allocate what the batch's shape does not explain."""
    data = make_bomb(valid)
    tracemalloc.start()
    refused = reason_of(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused is reason
    assert peak < 1 << 20


def test_few_bytes_cannot_claim_all_memory() -> None:
    """Columns of width 0 and counts of 0 cost no bytes on the wire, but memory: it is limited."""
    batch = make_heartbeat()
    envelope, sections = take_apart(encode_batch(batch))
    payload = bytearray(sections[0].payload())
    payload[HEADER_COUNTS_OFFSET - 2] = 2  # counts fidelity
    struct.pack_into("<H", payload, HEADER_COUNTS_OFFSET, 65_535)
    struct.pack_into("<I", payload, HEADER_COUNTS_OFFSET + 20, 65_536)
    columns = struct.pack("<HIBQB", 0, 0, 0, 0, 0) + 5 * struct.pack("<BQB", 0, 0, 0)
    blocks = RawSection(SectionId.TIME_BLOCKS, 0, 0, columns + b"\x01\x00", 0)
    blocks = blocks.with_payload(blocks.stored)
    data = put_together(envelope, [sections[0].with_payload(bytes(payload)), blocks])
    assert reason_of(data) is DecodeReason.OVER_LIMITS


def test_contradicting_columns_are_malformed(valid: bytes) -> None:
    """A batch whose parts fit the format but not each other is no batch."""
    envelope, sections = take_apart(valid)
    relabelling = next(s for s in sections if s.identifier == SectionId.RELABELLING)
    data = put_together(
        envelope,
        [
            section.with_payload(bytes(len(relabelling.payload())))
            if section is relabelling
            else section
            for section in sections
        ],
    )
    assert reason_of(data) is DecodeReason.MALFORMED


def test_peek_reads_the_identity_alone() -> None:
    """Deduplication does not need to decode, and refuses the same foreign bytes."""
    data = encode_batch(make_heartbeat(42, node="knoten-ß", incarnation=2**64 - 1))
    assert peek_identity(data) == ("knoten-ß", 2**64 - 1, 42)
    assert peek_identity(data[:40]) == ("knoten-ß", 2**64 - 1, 42)
    for foreign in (b"", b"MSRB", data[:20], data[:30], b"PAR1" + data[4:]):
        with pytest.raises(BatchDecodeError):
            peek_identity(foreign)


def test_every_buffer_is_accepted(valid: bytes) -> None:
    """Kafka hands out bytes, a mapped log file memoryviews."""
    expected = decode_batch(valid)
    assert batches_equal(decode_batch(bytearray(valid)), expected)
    assert batches_equal(decode_batch(memoryview(valid)), expected)


def test_error_keeps_its_reason_between_processes() -> None:
    """A decoding pool reports why it refused a record."""
    error = BatchDecodeError("what", reason=DecodeReason.OVER_LIMITS, why="why", next_step="next")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - dumped here
    assert (copy.what, copy.reason, copy.why, copy.next_step) == (
        "what",
        DecodeReason.OVER_LIMITS,
        "why",
        "next",
    )


def test_ids_take_at_most_a_tenth_over_the_combinatorial_bound() -> None:
    """Skewed routing costs less than 1.10 × log2 C(E, k) bits per token and layer."""
    tokens, layers, experts, top_k = 1_024, 8, 64, 8
    batch = make_batch(3, tokens=tokens, layers=layers, experts=experts, top_k=top_k, requests=8)
    sections = take_apart(encode_batch(batch))[1]
    ids = {SectionId.RELABELLING, SectionId.GAPS}
    bits = 8 * sum(len(s.stored) for s in sections if s.identifier in ids)
    numerator = np.prod([float(experts - i) for i in range(top_k)])
    combinations = numerator / np.prod([float(i + 1) for i in range(top_k)])
    assert bits <= 1.10 * np.log2(combinations) * tokens * layers
