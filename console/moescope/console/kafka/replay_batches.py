"""Which dead letters this version can read, and the batches that are written in their place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moescope.core.errors import InputError
from moescope.core.wire import decode_batch, encode_batch
from moescope.processors.plausibility import implausible

if TYPE_CHECKING:
    from moescope.core.batch import RoutingBatch


LATE_SECONDS: Final = 600
"""Windows take late rows for so long of event time after they closed."""


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


def has_late_rows(batch: RoutingBatch, now_us: int) -> bool:
    """Whether rows are older than windows wait for late ones.

    Args:
        batch: To be replayed.
        now_us: µs since the epoch; windows of a fleet at work have closed up to about then.
    """
    limit_us = now_us - LATE_SECONDS * 1_000_000
    times = [
        batch.tokens.event_time_us if batch.tokens else None,
        batch.token_blocks.first_time_us if batch.token_blocks else None,
        batch.time_blocks.second_us if batch.time_blocks else None,
    ]
    return any(each is not None and bool((each < limit_us).any()) for each in times)


def renumbered(batch: RoutingBatch, incarnation: int, sequence: int) -> bytes:
    """The batch's bytes under another identity; its rows and times stay."""
    header = replace(batch.header, incarnation=incarnation, sequence=sequence)
    return encode_batch(replace(batch, header=header))
