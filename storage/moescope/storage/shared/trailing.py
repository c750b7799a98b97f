"""The owner's trailing references: what load was like lately, in integers.

On a grid of 300 s of event time, per lane, phase and layer: `acc ← acc − ⌊acc / 8⌋ + slot`,
where `slot` is the period that ended one period before the grid point. So each reference is a
function of the records alone, as long as no row is more than 300 s late.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.emission import TrailingReference
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.storage.shared.panes import is_without_rows
from moescope.storage.shared.spans import SECOND_US

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from moescope.core.emission import LaneKey, SharedDelta

GRID_US = 300 * SECOND_US
DELAY = 2
"""A reference is made of periods up to this many before the one in which it is used."""
DECAY = 8
HISTORY = 8
"""Periods that are kept for windows that close again: 20 minutes of task windows, and slack."""


@dataclass(slots=True)
class _Trail:
    slots: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    made: dict[int, TrailingReference] = field(default_factory=dict)

    @property
    def last(self) -> int | None:
        return max(self.made, default=None)


class TrailingReferences:
    """References of shared windows, per lane and phase.

    Args:
        name_lane: Gives the id of a lane, of which reference ids are made.
    """

    def __init__(self, name_lane: Callable[[LaneKey], str]) -> None:
        self._name_lane = name_lane
        self._trails: dict[tuple[LaneKey, str], _Trail] = {}

    def add(self, delta: SharedDelta) -> None:
        """Add a pane of scope `all` to its period; other panes are not looked at."""
        if delta.kind is not WindowKind.TIME or delta.scope_kind is not ScopeKind.ALL:
            return
        if is_without_rows(delta):
            return
        trail = self._trails.setdefault((delta.lane, delta.phase), _Trail())
        period = delta.pane // GRID_US
        last = trail.last
        if last is not None and period <= last - DELAY:
            return
        counts = delta.counts.astype(np.int64)
        known = trail.slots.get(period)
        trail.slots[period] = counts if known is None else known + counts

    def advance(self, domain: str, watermark_us: int) -> list[TrailingReference]:
        """Make the references of all grid points up to a watermark that have a period to add.

        Returns:
            The new ones; each has to be stored, for the next ones are made of it.
        """
        new: list[TrailingReference] = []
        for (lane, phase), trail in self._trails.items():
            if lane.domain == domain:
                new += self._add_slots(lane, phase, trail, watermark_us // GRID_US)
        return new

    def _add_slots(
        self, lane: LaneKey, phase: str, trail: _Trail, last: int
    ) -> Iterator[TrailingReference]:
        while trail.slots and min(trail.slots) + DELAY <= last:
            yield self._make(lane, phase, trail, min(trail.slots) + DELAY)

    def at(
        self, lane: LaneKey, phase: str, time_us: int
    ) -> tuple[TrailingReference | None, list[TrailingReference]]:
        """The reference for a window with that logical close time.

        Returns:
            The reference, or None before the first one exists; and the references that were
            made for it and have to be stored.
        """
        trail = self._trails.get((lane, phase))
        if trail is None:
            return None, []
        period = time_us // GRID_US
        new = list(self._add_slots(lane, phase, trail, period))
        if not trail.made or period < min(trail.made):
            return None, new
        known = trail.made.get(period)
        if known is None:
            # A period without traffic two periods before: only the decay makes it differ.
            known = self._make(lane, phase, trail, period)
            new.append(known)
        return known, new

    def _make(self, lane: LaneKey, phase: str, trail: _Trail, period: int) -> TrailingReference:
        slot = trail.slots.pop(period - DELAY, None)
        earlier = max((made for made in trail.made if made < period), default=None)
        counts = np.zeros((len(lane.layers), lane.experts), np.int64)
        if earlier is not None:
            counts = _decay(trail.made[earlier].counts, period - earlier)
        reference = self._reference(lane, phase, period, counts if slot is None else counts + slot)
        trail.made[period] = reference
        return reference

    def forget(self, domain: str, watermark_us: int) -> None:
        """Drop references that no window can name any more; the newest always stays."""
        oldest = watermark_us // GRID_US - HISTORY
        for (lane, _), trail in self._trails.items():
            if lane.domain == domain:
                last = trail.last
                for period in [made for made in trail.made if made < oldest and made != last]:
                    del trail.made[period]

    def _reference(
        self, lane: LaneKey, phase: str, period: int, counts: NDArray[np.int64]
    ) -> TrailingReference:
        return TrailingReference(
            reference_id=f"{self._name_lane(lane)}-{phase}-{period * GRID_US // SECOND_US}",
            lane=lane,
            phase=phase,
            partition="",
            effective_from_us=period * GRID_US,
            counts=counts,
        )

    def restore(
        self, references: Iterable[TrailingReference], panes: Iterable[SharedDelta]
    ) -> None:
        """Rebuild after a restart, from stored references and from panes not yet in one."""
        for reference in references:
            trail = self._trails.setdefault((reference.lane, reference.phase), _Trail())
            trail.made[reference.effective_from_us // GRID_US] = replace(
                reference, counts=reference.counts.copy()
            )
        for pane in panes:
            self.add(pane)


def _decay(counts: NDArray[np.int64], times: int) -> NDArray[np.int64]:
    for _ in range(times):
        step = counts // DECAY
        if not step.any():
            break
        counts = counts - step
    return counts
