from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from oracles.wire_v1_plain import decode as decode_plainly
from support.plain_batches import plain_batch

from moescope.core.batch_equality import batches_equal
from moescope.core.wire import decode_batch, encode_batch

VECTORS = Path(__file__).resolve().parent.parent / "vectors" / "wire-v1"
NAMES = ("counts", "everything", "heartbeat", "ids", "invalid_ids", "placement", "wide_ids")


def read_vector(name: str) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a committed vector, and its content."""
    content = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    return (VECTORS / f"{name}.bin").read_bytes(), content


@pytest.mark.parametrize("name", NAMES)
def test_committed_bytes_are_still_read(name: str) -> None:
    """A record that an earlier version wrote means today what it meant then."""
    data, content = read_vector(name)
    assert plain_batch(decode_batch(data)) == content


@pytest.mark.parametrize("name", NAMES)
def test_second_decoder_reads_the_vectors(name: str) -> None:
    """The vectors agree with the specification, not only with the codec."""
    data, content = read_vector(name)
    assert decode_plainly(data) == content


@pytest.mark.parametrize("name", NAMES)
def test_vectors_survive_being_written_again(name: str) -> None:
    """Today's encoder can say everything that the vectors say."""
    batch = decode_batch(read_vector(name)[0])
    assert batches_equal(decode_batch(encode_batch(batch)), batch)


def test_every_vector_is_tested() -> None:
    """A new vector must be named above, or nobody would read it."""
    assert tuple(sorted(path.stem for path in VECTORS.glob("*.bin"))) == NAMES
