"""Which token windows are kept as rows, when there are more than the budget allows."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.processors.kernels.records import MINUTE_US, NO_TIME

if TYPE_CHECKING:
    from numpy.typing import NDArray

REMEMBERED_MINUTES = 128
"""Counted by use, not by distance: a node whose clock is an hour ahead must not make a partition
forget the minutes of all others."""
LARGEST_EXPONENT = 40
_SALT = b"moescope-row-keep"


def salted_hash(request: str, salt: bytes) -> int:
    """64-bit hash of a request; samples of different salts are independent."""
    digest = blake2b(request.encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
    return int.from_bytes(digest, "little")


def keep_hash(request: str) -> int:
    """64-bit hash that decides, the same on every processor, whether a request's rows are kept."""
    return salted_hash(request, _SALT)


class RowSampling:
    """The exponent j per event-time minute: rows of a window are kept with probability 2⁻ʲ.

    j(m) follows from the rows that closed in minute m − 2, so it is a function of the records
    alone. It is frozen when it is first asked for.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._rows: dict[int, int] = {}
        self._exponents: dict[int, int] = {}

    def count(self, close_time_us: NDArray[np.int64], rows_per_window: int) -> None:
        """Count closed rows in the minutes of their logical close time."""
        timed = close_time_us[close_time_us != NO_TIME]
        minutes, windows = np.unique(timed // MINUTE_US, return_counts=True)
        for minute, number in zip(minutes.tolist(), windows.tolist(), strict=True):
            self._rows[minute] = self._rows.get(minute, 0) + number * rows_per_window

    def exponent(self, minute: int) -> int:
        """Exponent j of a minute."""
        known = self._exponents.get(minute)
        if known is None:
            rows = self._rows.get(minute - 2, 0)
            known = 0
            while rows > self._budget << known and known < LARGEST_EXPONENT:
                known += 1
            self._exponents[minute] = known
            self._forget()
        return known

    def weights(
        self, first_time_us: NDArray[np.int64], request_hash: NDArray[np.uint64]
    ) -> NDArray[np.float64]:
        """Weight of each window: 2ʲ when its request is kept, else 0; 1 without event time."""
        weights = np.ones(len(first_time_us))
        minutes = first_time_us // MINUTE_US
        for minute in np.unique(minutes[first_time_us != NO_TIME]).tolist():
            exponent = self.exponent(minute)
            if exponent:
                here = (minutes == minute) & (first_time_us != NO_TIME)
                kept = request_hash[here] < np.uint64(1 << (64 - exponent))
                weights[here] = np.where(kept, float(1 << exponent), 0.0)
        return weights

    def _forget(self) -> None:
        for known in (self._rows, self._exponents):
            while len(known) > REMEMBERED_MINUTES:
                del known[next(iter(known))]

    def state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {"rows": list(self._rows.items()), "exponents": list(self._exponents.items())}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self._rows = {int(m): int(n) for m, n in state["rows"]}
        self._exponents = {int(m): int(j) for m, j in state["exponents"]}
