"""Which dead letters this version can read, and the batches that are written in their place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moescope.core.errors import InputError
from moescope.core.wire import decode_batch, encode_batch
from moescope.processors.plausibility import implausible

if TYPE_CHECKING:
    from moescope.core.batch import RoutingBatch


class LetterUnusableError(InputError):
    """A dead letter is still one: this version cannot use it either."""


def readable_batch(payload: bytes) -> RoutingBatch:
    """A letter's payload as a routing batch.

    Raises:
        BatchDecodeError: It cannot be decoded.
        LetterUnusableError: It can, and would be refused again.
    """
    batch = decode_batch(payload)
    if reason := implausible(batch):
        raise LetterUnusableError(f"Out of range: {reason}.")
    return batch


def renumbered(batch: RoutingBatch, incarnation: int, sequence: int) -> bytes:
    """The batch's bytes under another identity; its rows and times stay."""
    header = replace(batch.header, incarnation=incarnation, sequence=sequence)
    return encode_batch(replace(batch, header=header))
