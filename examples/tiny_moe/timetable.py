"""When each token of a recording was computed: ticks of 5 s, blocks of a minute.

A block is one minute of twelve ticks and shares no request with another block. In prefill each of
16 slots computes a chunk of 64 tokens per tick, so that any 5 s hold 16 × 64 tokens. The chunks of
a tick follow each other within its first second, as those of one engine pass do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

START_US: Final = 1_000_000_000_000_000
"""Event time at which every recording begins."""
TICK_US: Final = 5_000_000
TICKS: Final = 12
"""Ticks of a block."""
BLOCK_US: Final = TICKS * TICK_US
SLOTS: Final = 16
CHUNK: Final = 64
LONG_TICKS: Final = 8
"""Ticks of a request of 512 tokens."""
ALIGNED_TICKS: Final = 6
SHORT_TICKS: Final = 7
DECODED_PER_TICK: Final = 32

_BETWEEN_SLOTS_US: Final = 60_000
_BETWEEN_DECODE_STEPS_US: Final = 30_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request runs.

    Attributes:
        block: Minute of the recording.
        slot: 0 … 15.
        tick: First tick, within the block.
        ticks: How many; 64 tokens are computed in each.
    """

    block: int
    slot: int
    tick: int
    ticks: int

    @property
    def tokens(self) -> int:
        """Tokens that are computed there."""
        return self.ticks * CHUNK


class Chunk(NamedTuple):
    """Rows of a request that are computed in one tick, from `start` to before `stop`."""

    tick: int
    slot: int
    start: int
    stop: int


def in_a_row(block: int, slot: int, lengths: tuple[int, ...]) -> Iterator[Place]:
    """Requests of these many ticks, back to back from the block's beginning; 0 leaves one out."""
    tick = 0
    for ticks in lengths:
        if ticks:
            yield Place(block, slot, tick, ticks)
        tick += ticks


def unaligned(block: int) -> Iterator[Place]:
    """A short request, one of 512 tokens, and the rest; the short one differs by slot."""
    for slot in range(SLOTS):
        first = 1 + (slot + block) % 4
        yield from in_a_row(block, slot, (first, LONG_TICKS, TICKS - LONG_TICKS - first))


def aligned(block: int) -> Iterator[Place]:
    """All slots begin together, one request of 384 tokens each; then the block is over."""
    for slot in range(SLOTS):
        yield Place(block, slot, 0, ALIGNED_TICKS)


def aligned_512(block: int) -> Iterator[Place]:
    """All slots begin together, one request of 512 tokens each; then the block is over."""
    for slot in range(SLOTS):
        yield Place(block, slot, 0, LONG_TICKS)


def short_unaligned(block: int) -> Iterator[Place]:
    """A request of one or two ticks, then one of six or five; the block is over after seven."""
    for slot in range(SLOTS):
        first = 1 + (slot + block) % 2
        yield from in_a_row(block, slot, (first, SHORT_TICKS - first))


def prefill_chunks(place: Place) -> Iterator[Chunk]:
    """The chunks of a request."""
    for number in range(place.ticks):
        tick = place.block * TICKS + place.tick + number
        yield Chunk(tick, place.slot, number * CHUNK, (number + 1) * CHUNK)


def prefill_time_us(chunk: Chunk) -> int:
    """Event time of a chunk's rows."""
    return START_US + chunk.tick * TICK_US + chunk.slot * _BETWEEN_SLOTS_US


def decode_time_us(block: int, number: int) -> int:
    """Event time of the step that computes the generated token of this number, of all slots."""
    tick, step = divmod(number, DECODED_PER_TICK)
    return START_US + (block * TICKS + tick) * TICK_US + step * _BETWEEN_DECODE_STEPS_US
