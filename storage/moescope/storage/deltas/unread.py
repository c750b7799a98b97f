"""Which partitions of the routing topic hold records that no processor has shown yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moescope.core.accounts import PartitionProgress
    from moescope.core.clock import Clock

PATIENCE_SECONDS: Final = 120.0
"""So long a partition whose records wait is waited for without any progress."""


class UnreadPartitions:
    """Compares where partitions end with what the store has applied of them.

    Args:
        clock: Its monotonic time decides who is served.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: dict[str, int] = {}
        self._emitted_to: dict[str, int] = {}
        self._waiting_since: dict[str, float] = {}

    def note_ends(self, ends: Mapping[str, int]) -> None:
        """Take where every partition of the topic ends now."""
        self._ends = dict(ends)
        self._judge()

    def note_progress(self, progress: Iterable[PartitionProgress]) -> None:
        """Take how far partitions are applied."""
        for each in progress:
            if self._emitted_to.get(each.partition, 0) != each.emitted_to:
                self._emitted_to[each.partition] = each.emitted_to
                # Whoever moves is served: patience begins anew.
                self._waiting_since.pop(each.partition, None)
        self._judge()

    def unread(self) -> frozenset[str]:
        """Partitions to wait for: records wait, and somebody works on them."""
        return frozenset(self._waiting_since) - self.unserved()

    def unserved(self) -> frozenset[str]:
        """Partitions whose records wait, and whose progress has not moved for 120 s."""
        patient_from = self._clock.monotonic() - PATIENCE_SECONDS
        return frozenset(
            name for name, since in self._waiting_since.items() if since < patient_from
        )

    def _judge(self) -> None:
        now = self._clock.monotonic()
        waiting = {name for name, end in self._ends.items() if end > self._emitted_to.get(name, 0)}
        self._waiting_since = {name: self._waiting_since.get(name, now) for name in waiting}
