"""The trailing references of a lane, and which of them came into force."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from moescope.core.clock import NO_TIME
from moescope.core.emission import TrailingReference
from moescope.processors.panes import PHASE_NAMES
from moescope.processors.trailing import PERIOD_US, TrailingSums

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from moescope.core.emission import LaneKey

UNTIMED = NO_TIME
"""The period of windows without event times."""


class LaneReferences:
    """Trailing references by phase.

    Args:
        key, partition: Whose they are.
        collect: Called before a new reference is made, so that counts still held elsewhere are
            added first.
    """

    def __init__(self, key: LaneKey, partition: str, collect: Callable[[], None]) -> None:
        self._key = key
        self._partition = partition
        self._collect = collect
        self._sums: dict[int, TrailingSums] = {}
        self._made: list[TrailingReference] = []
        lane = repr(key).encode("utf-8", "surrogatepass")
        self._lane_name = blake2b(lane, digest_size=6).hexdigest()

    def sums_of(self, phase: int) -> TrailingSums:
        """Sums of a phase, begun if need be."""
        known = self._sums.get(phase)
        if known is None:
            shape = (len(self._key.layers), self._key.experts)
            known = self._sums[phase] = TrailingSums(shape, self._collect)
        return known

    def in_force(self, phase: int, period: int) -> tuple[NDArray[np.int64] | None, str]:
        """The reference [L, E] of a period and its id; None and "" while there is none."""
        if period == UNTIMED:
            return None, ""
        counts, made = self.sums_of(phase).reference(period)
        if counts is None:
            return None, ""
        name = f"trailing/{self._partition}/{self._lane_name}/{PHASE_NAMES[phase]}/{period}"
        if made:
            self._made.append(
                TrailingReference(
                    reference_id=name,
                    lane=self._key,
                    phase=PHASE_NAMES[phase],
                    partition=self._partition,
                    effective_from_us=period * PERIOD_US,
                    counts=counts,
                )
            )
        return counts, name

    def take_made(self) -> list[TrailingReference]:
        """Those that came into force since the last call."""
        made, self._made = self._made, []
        return made

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Values by phase, and arrays."""
        values: dict[str, Any] = {}
        arrays: dict[str, NDArray[Any]] = {}
        for phase, sums in self._sums.items():
            values[str(phase)], parts = sums.state()
            arrays |= {f"trailing{phase}.{name}": array for name, array in parts.items()}
        return values, arrays

    def restore(self, values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take over a saved state; arrays of others may be among its own."""
        for phase, known in values.items():
            prefix = f"trailing{phase}."
            parts = {
                name.removeprefix(prefix): array
                for name, array in arrays.items()
                if name.startswith(prefix)
            }
            self.sums_of(int(phase)).restore(known, parts)
