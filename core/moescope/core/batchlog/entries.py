"""One record on its way into the log, and the check that it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moescope.core.batchlog.errors import BatchLogUsageError, PayloadTooLargeError
from moescope.core.batchlog.frames import MAX_U64
from moescope.core.clock import END_OF_TIME, NO_TIME, Clock

if TYPE_CHECKING:
    from moescope.core.batchlog.partition import PartitionMeta
    from moescope.core.batchlog.segment_file import Payload


class Entry(NamedTuple):
    """One record to append; the fields are those of `BatchLogWriter.append`."""

    payload: Payload
    ring_from: int = 0
    ring_to: int = 0
    append_time_us: int | None = None


def checked_time(entry: Entry, largest: int, meta: PartitionMeta, clock: Clock) -> int:
    """The append time of an entry, once all its values are found to fit.

    Args:
        entry: What is to be appended.
        largest: Most payload bytes that are accepted.
        meta: The partition's properties.
        clock: Source of the time if the entry has none.

    Returns:
        Microseconds since the Unix epoch, or `NO_TIME` in a partition without append times.

    Raises:
        PayloadTooLargeError: The payload is too large.
        BatchLogUsageError: The ring range or the time does not fit.
    """
    if len(entry.payload) > largest:
        raise PayloadTooLargeError(
            f"A payload of {len(entry.payload)} bytes is too large for the batch log.",
            why=f"At most {largest} bytes are accepted here.",
            next_step="Make smaller batches, or raise max_payload_bytes or the byte cap.",
        )
    if not 0 <= entry.ring_from <= entry.ring_to <= MAX_U64:
        raise BatchLogUsageError(
            f"The ring range {entry.ring_from} to {entry.ring_to} is not a range.",
            why="Both ends are unsigned 64-bit numbers, and the second is not the smaller one.",
            next_step="Pass the ring positions in order, or leave both at 0.",
        )
    given = entry.append_time_us
    if meta.append_clock == "none":
        if given in (None, NO_TIME):
            return NO_TIME
        why = f"The partition {meta.name!r} was created without append times."
    elif given is None:
        return clock.now_us()
    elif NO_TIME <= given <= END_OF_TIME:
        return given
    else:
        why = "It does not fit into 64 bits."
    raise BatchLogUsageError(
        f"The append time {given} is not accepted.",
        why=why,
        next_step="Leave the append time out.",
    )
