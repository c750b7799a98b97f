"""The one error that decoding raises."""

from __future__ import annotations

from enum import StrEnum

from moescope.core.errors import InputError


class DecodeReason(StrEnum):
    """Why bytes are no routing batch that this reader accepts."""

    UNKNOWN_VERSION = "unknown_version"
    MALFORMED = "malformed"
    OVER_LIMITS = "over_limits"


class BatchDecodeError(InputError):
    """Bytes that are not an acceptable routing batch.

    Args:
        what: What is wrong, in one sentence.
        reason: The class of the fault, as dead letters record it.
        why: The cause, as far as it is known.
        next_step: What the reader can do about it.
    """

    def __init__(
        self,
        what: str,
        *,
        reason: DecodeReason = DecodeReason.MALFORMED,
        why: str = "",
        next_step: str = "",
    ) -> None:
        super().__init__(what, why=why, next_step=next_step)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the keyword arguments when the error crosses a process boundary."""
        return _rebuild, (self.what, self.reason, self.why, self.next_step)


def _rebuild(what: str, reason: DecodeReason, why: str, next_step: str) -> BatchDecodeError:
    return BatchDecodeError(what, reason=reason, why=why, next_step=next_step)
