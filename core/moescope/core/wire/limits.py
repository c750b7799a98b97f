"""How large a batch a reader accepts: checked before anything of that size is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from moescope.core.wire.errors import BatchDecodeError, DecodeReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Largest accepted sizes of one batch.

    Attributes:
        compressed_bytes: Of the whole record.
        inflated_bytes: Of all sections and arrays together, once decoded.
        tokens, layers, top_k, experts, requests: T, L, k, E and R.
        blocks: Rows of token blocks, and of time blocks.
        string_bytes: Of all names together, in UTF-8.
        sections: Including those that are skipped.
    """

    compressed_bytes: int = 8 << 20
    inflated_bytes: int = 256 << 20
    tokens: int = 1 << 18
    layers: int = 1_024
    top_k: int = 128
    experts: int = 65_535
    requests: int = 1 << 16
    blocks: int = 1 << 16
    string_bytes: int = 4 << 20
    sections: int = 64


DEFAULT_LIMITS = Limits()


def check_limit(what: str, value: int, largest: int) -> None:
    """Refuse what is over a limit.

    Raises:
        BatchDecodeError: With reason `over_limits`.
    """
    if value > largest:
        raise BatchDecodeError(
            f"The batch has {value} {what}; the limit is {largest}",
            reason=DecodeReason.OVER_LIMITS,
            next_step="Send smaller batches, or raise this reader's limit.",
        )


class Budget:
    """What is left of a limit that several parts share.

    Args:
        what: What is counted, in the plural.
        limit: How much there is.
    """

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._spent = 0

    def spend(self, amount: int) -> None:
        """Take a share before allocating it.

        Raises:
            BatchDecodeError: With reason `over_limits`, when too little is left.
        """
        self._spent += amount
        if self._spent > self._limit:
            check_limit(self._what, self._spent, self._limit)
