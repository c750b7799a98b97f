"""How nodes share the bytes that may be on their way at once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_BUSY_NODES: Final = 5
"""A node is a partition of the topic, and an idempotent client has five requests per broker on
their way: with a sixth partition to send for, its thread would spin until one of them returns."""

SLOW_AFTER_SECONDS: Final = 1.0
"""A node that waits for so long holds up nobody: another one may send in its place."""


class NodeLoad(NamedTuple):
    """What a node has on its way.

    Attributes:
        bytes: Payload bytes.
        waits: Seconds since the oldest of it was sent; 0 with nothing on its way.
    """

    bytes: int
    waits: float


class Share(NamedTuple):
    """What one node may send now.

    Attributes:
        bytes: Payload bytes.
        first_bytes: Largest first record, which may be larger than `bytes`.
    """

    bytes: int
    first_bytes: int


NOTHING: Final = Share(0, 0)


def share_of(mine: NodeLoad, others: Iterable[NodeLoad], *, cap: int, sharers: int) -> Share:
    """How much a node may send without taking other nodes' part.

    Args:
        mine: The node's load.
        others: Loads of the other nodes.
        cap: Most bytes on their way, of all nodes.
        sharers: Nodes that have something to send or on its way, this one included.

    Returns:
        Room within both the node's part and what is free. A record larger than its node's part
        may go while nothing of the node is on its way, if it fits into what is free; one larger
        than the cap when nothing at all is on its way.
    """
    rest = list(others)
    busy = sum(load.bytes > 0 and load.waits < SLOW_AFTER_SECONDS for load in rest)
    if not mine.bytes and busy >= MOST_BUSY_NODES:
        return NOTHING
    free = max(0, cap - mine.bytes - sum(load.bytes for load in rest))
    room = max(0, min(free, cap // max(1, sharers) - mine.bytes))
    if mine.bytes:
        return Share(room, room)
    return Share(room, sys.maxsize if free == cap else free)
