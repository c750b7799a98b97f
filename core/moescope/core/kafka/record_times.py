"""Two times that an agent sends with each record, so that a late delivery is no skewed clock.

The broker stamps a record when it arrives. A batch that waited in the batch log while no broker
answered arrives long after it was made. So the agent says, by its own clock, when the batch was
logged and when it was sent: the broker's time minus the sending time is how far the two clocks
differ, and the logging time moved by that is when the batch was logged, by the broker's clock.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER: Final = "moescope-times"
_TIMES: Final = struct.Struct("<qq")
_FURTHEST_US: Final = 1 << 61


def times_header(logged_at_us: int, sent_at_us: int) -> tuple[str, bytes]:
    """The header of a record that was logged and sent then, µs since the epoch."""
    return HEADER, _TIMES.pack(logged_at_us, sent_at_us)


def append_time_us(broker_time_us: int, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """When the batch was logged, by the broker's clock, µs since the epoch.

    Args:
        broker_time_us: When the broker appended the record.
        headers: Of the record; without usable times the broker's time is all there is.
    """
    for name, value in headers:
        if name == HEADER and value is not None and len(value) == _TIMES.size:
            logged_at_us, sent_at_us = _TIMES.unpack(value)
            if max(abs(logged_at_us), abs(sent_at_us)) < _FURTHEST_US:
                return int(logged_at_us + broker_time_us - sent_at_us)
    return broker_time_us
