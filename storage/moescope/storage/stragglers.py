"""Partitions that come back after a broker was away are waited for, a moment."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moescope.core.emission import LIVE_DOMAIN
from moescope.storage.shared.clocks import SET_ASIDE_US

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moescope.core.accounts import PartitionProgress
    from moescope.core.clock import Clock
    from moescope.core.emission import Emission, EmissionStore

PATIENCE_SECONDS: Final = 10.0
"""Longer than the longest pause of an agent between two looks for its broker."""


class PatientStore:
    """Applies emissions, and lets no partition be set aside before it was behind for 10 s.

    When a broker was away, agents come back one after the other, and the first one's heap moves
    its partition far ahead of all others before their records are in the topic. Set aside at
    once, their share of shared windows would come late.

    Args:
        store: Where emissions go.
        clock: Its monotonic time is how long a partition has been behind. It decides only when
            windows close, not what is in them.
    """

    def __init__(self, store: EmissionStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._progress = store.load_progress()
        self._behind_since: dict[str, float] = {}

    def load_progress(self) -> dict[str, PartitionProgress]:
        """Progress of every partition as of the last commit."""
        return self._store.load_progress()

    def apply(self, emission: Emission) -> None:
        """Write an emission in one transaction; raises what the store raises."""
        progress = self._progress | {each.partition: each for each in emission.progress}
        waited_for = self._waited_for(progress.values())
        self._store.apply(replace(emission, unread=emission.unread | waited_for))
        self._progress = progress

    def _waited_for(self, progress: Iterable[PartitionProgress]) -> frozenset[str]:
        now = self._clock.monotonic()
        behind = _behind(progress)
        self._behind_since = {name: self._behind_since.get(name, now) for name in behind}
        return frozenset(
            name for name, since in self._behind_since.items() if now - since < PATIENCE_SECONDS
        )


def _behind(partitions: Iterable[PartitionProgress]) -> set[str]:
    live = [each for each in partitions if each.domain == LIVE_DOMAIN and not each.sealed]
    fastest = max((each.watermark_us for each in live), default=0)
    return {each.partition for each in live if each.watermark_us < fastest - SET_ASIDE_US}
