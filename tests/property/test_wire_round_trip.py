from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.wire_v1_plain import decode as decode_plainly
from support.batches import make_batch, make_ids, routing_batches
from support.plain_batches import plain_batch
from support.wire_bytes import mutated_bytes, mutated_sections, sealed

from moescope.core.batch import RoutingBatch
from moescope.core.batch_equality import batches_equal
from moescope.core.gap_planes import ids_from_gaps
from moescope.core.wire import (
    BatchDecodeError,
    Limits,
    decode_batch,
    encode_batch,
    peek_identity,
)

SMALL_LIMITS = Limits(inflated_bytes=4 << 20)


def decodes_or_refuses(data: bytes) -> None:
    """Decode bytes; anything but a valid batch or the one error fails the test."""
    try:
        batch = decode_batch(data, SMALL_LIMITS)
    except BatchDecodeError:
        return
    assert isinstance(batch, RoutingBatch)
    if batch.routes is not None:
        assert batch.routes.expert_ids.shape == batch.routes.shape


@given(routing_batches())
def test_any_batch_survives_the_wire(batch: RoutingBatch) -> None:
    """What a producer encodes is what a processor decodes."""
    data = encode_batch(batch)
    assert plain_batch(decode_batch(data)) == plain_batch(batch)
    assert batches_equal(decode_batch(data), batch)
    assert peek_identity(data) == (
        batch.header.node,
        batch.header.incarnation,
        batch.header.sequence,
    )


@given(routing_batches())
def test_second_decoder_agrees(batch: RoutingBatch) -> None:
    """The specification says what the encoder writes."""
    assert decode_plainly(encode_batch(batch)) == plain_batch(batch)


@given(routing_batches(), st.integers(2, 9))
@settings(max_examples=10)
def test_level_does_not_change_content(batch: RoutingBatch, level: int) -> None:
    """A higher compression level is a matter of size alone."""
    assert batches_equal(decode_batch(encode_batch(batch, level=level)), batch)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_raise_the_one_error(data: bytes) -> None:
    """A stranger's record on the topic cannot stop a processor."""
    decodes_or_refuses(data)
    decodes_or_refuses(sealed(b"MSRB\x01\x00" + data))


@given(routing_batches(), st.integers(0, 2**32))
def test_damaged_batches_decode_or_raise_the_one_error(batch: RoutingBatch, seed: int) -> None:
    """Damage before and behind the checksum ends as the documented error."""
    rng = random.Random(seed)
    data = encode_batch(batch)
    for _ in range(3):
        decodes_or_refuses(mutated_bytes(rng, data))
        decodes_or_refuses(mutated_sections(rng, data))


@given(
    seed=st.integers(0, 2**32),
    tokens=st.integers(1, 300),
    experts=st.sampled_from([8, 255, 256, 257, 1_000]),
    top_k=st.integers(1, 8),
)
@settings(max_examples=25)
def test_gaps_keep_every_row_of_ids(seed: int, tokens: int, experts: int, top_k: int) -> None:
    """Relabelling, sorting and gaps lose nothing but the order within a row."""
    ids = make_ids(seed, tokens=tokens, layers=2, experts=experts, top_k=top_k)
    batch = make_batch(expert_ids=ids, tokens=tokens, layers=2, experts=experts, top_k=top_k,
                       requests=1)  # fmt: skip
    assert batch.routes is not None
    back = ids_from_gaps(batch.routes.gaps, batch.routes.relabelling)
    assert np.array_equal(np.sort(back, axis=2), np.sort(ids, axis=2))
