"""Trailing reference: what a lane's routing looked like lately, in whole numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

PERIOD_US = 300_000_000
DECAY = 8
REMEMBERED_REFERENCES = 8
MOST_FOLDS = 512
"""After that many periods a decaying sum of any 63-bit counts has come to rest."""


def fold(accumulated: NDArray[np.int64], period: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """`acc − ⌊acc / 8⌋ + period`, in integers so that the order of commits cannot matter."""
    decayed = accumulated - accumulated // DECAY
    return decayed if period is None else decayed + period


class TrailingSums:
    """The decaying sum of one lane and phase.

    Args:
        shape: (L, E).
        collect: Called before a new reference is made, so that counts still held elsewhere
            are added first.
    """

    def __init__(self, shape: tuple[int, int], collect: Callable[[], None]) -> None:
        self._accumulated = np.zeros(shape, np.int64)
        self._collect = collect
        self._periods: dict[int, NDArray[np.int64]] = {}
        self._folded_to: int | None = None
        self._references: dict[int, NDArray[np.int64] | None] = {}

    def add(self, period: int, counts: NDArray[np.integer[Any]]) -> None:
        """Add counts [L, E] to a period; a period that was folded already takes no more."""
        if self._folded_to is not None and period <= self._folded_to:
            return
        held = self._periods.get(period)
        if held is None:
            self._periods[period] = counts.astype(np.int64)
        else:
            held += counts

    def reference(self, period: int) -> tuple[NDArray[np.int64] | None, bool]:
        """The reference in force in a period, and whether it was made by this call.

        It holds the periods up to `period − 2`; None before there is one.
        """
        if period in self._references:
            return self._references[period], False
        if self._references and period < min(self._references):
            return None, False
        self._collect()
        last = period - 2
        if self._folded_to is None:
            earlier = [p for p in self._periods if p <= last]
            if not earlier:
                return None, False
            self._folded_to = min(earlier) - 1
        for folded in range(self._folded_to + 1, min(last, self._folded_to + MOST_FOLDS) + 1):
            self._accumulated = fold(self._accumulated, self._periods.pop(folded, None))
        for skipped in [p for p in self._periods if p <= last]:
            self._accumulated = fold(self._accumulated, self._periods.pop(skipped))
        self._folded_to = max(last, self._folded_to)
        made = self._accumulated.copy()
        self._references[period] = made
        for old in sorted(self._references)[:-REMEMBERED_REFERENCES]:
            del self._references[old]
        return made, True

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[np.int64]]]:
        """JSON-able values and arrays."""
        values = {
            "folded_to": self._folded_to,
            "periods": sorted(self._periods),
            "references": sorted(self._references),
        }
        arrays = {"accumulated": self._accumulated}
        arrays |= {f"period{p}": counts for p, counts in self._periods.items()}
        arrays |= {f"reference{p}": c for p, c in self._references.items() if c is not None}
        return values, arrays

    def restore(self, values: dict[str, Any], arrays: dict[str, NDArray[np.int64]]) -> None:
        """Take over a saved state."""
        self._folded_to = values["folded_to"]
        self._accumulated = arrays["accumulated"]
        self._periods = {p: arrays[f"period{p}"] for p in values["periods"]}
        self._references = {p: arrays[f"reference{p}"] for p in values["references"]}
