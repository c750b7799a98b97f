"""What a writer of the batch log can be configured to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from moescope.core.batchlog.errors import BatchLogUsageError
from moescope.core.batchlog.frames import HEADER_BYTES, MAX_PAYLOAD_BYTES

Durability = Literal["none", "batch"]
CapPolicy = Literal["drop_oldest", "refuse"]

_SEGMENTS_PER_CAP = 8  # the cap removes whole segments, so one must be a small part of it


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Settings of one batch log writer.

    Attributes:
        segment_bytes: A segment that would exceed this many bytes is followed by a new one.
        byte_cap: Most bytes of all segments together; None for no cap. With a cap, segments are
            at most an eighth of it.
        cap_policy: When unread records are in the way of the cap: "drop_oldest" removes and
            counts them, "refuse" lets appending fail.
        durability: "batch": `flush` and `append_many` return once the disk has everything;
            "none": the operating system writes when it likes, so that records survive the death
            of the process but not a power loss.
        max_payload_bytes: A larger payload is refused.

    Raises:
        BatchLogUsageError: A value is out of range.
    """

    segment_bytes: int = 64 * 1024 * 1024
    byte_cap: int | None = None
    cap_policy: CapPolicy = "drop_oldest"
    durability: Durability = "batch"
    max_payload_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        if self.segment_bytes < 1:
            raise _out_of_range("segment_bytes", self.segment_bytes, "at least 1")
        if self.byte_cap is not None and self.byte_cap <= HEADER_BYTES:
            raise _out_of_range("byte_cap", self.byte_cap, f"more than {HEADER_BYTES}, or none")
        if not 0 < self.max_payload_bytes <= MAX_PAYLOAD_BYTES:
            raise _out_of_range(
                "max_payload_bytes", self.max_payload_bytes, f"1 to {MAX_PAYLOAD_BYTES}"
            )
        if self.cap_policy not in get_args(CapPolicy):
            raise _out_of_range("cap_policy", self.cap_policy, "drop_oldest or refuse")
        if self.durability not in get_args(Durability):
            raise _out_of_range("durability", self.durability, "none or batch")

    @property
    def roll_bytes(self) -> int:
        """Size beyond which a new segment begins, once the byte cap is considered."""
        if self.byte_cap is None:
            return self.segment_bytes
        return min(self.segment_bytes, self.byte_cap // _SEGMENTS_PER_CAP)

    @property
    def largest_payload(self) -> int:
        """Most payload bytes of one record, once the byte cap is considered."""
        if self.byte_cap is None:
            return self.max_payload_bytes
        return min(self.max_payload_bytes, self.byte_cap - HEADER_BYTES)


def _out_of_range(name: str, value: object, accepted: str) -> BatchLogUsageError:
    return BatchLogUsageError(
        f"The batch log setting {name} cannot be {value!r}.",
        why=f"Accepted: {accepted}.",
        next_step="Change the setting.",
    )
