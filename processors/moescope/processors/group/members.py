"""What a rebalance changed, noted on the client's thread and taken up by the reading thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka import ConsumerRebalanceListener

if TYPE_CHECKING:
    from collections.abc import Iterable


class Change(NamedTuple):
    """Partitions that were given or taken, in the order in which that happened."""

    given: bool
    numbers: frozenset[int]


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # untyped library
    """Notes changes; does no more, since the client's heartbeats wait meanwhile.

    Args:
        consumer: Whose partitions they are.
    """

    def __init__(self, consumer: Any) -> None:  # noqa: ANN401 (untyped library)
        self._consumer = consumer
        self._lock = threading.Lock()
        self._changes: list[Change] = []

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """Note them, and hold them until their place is known.

        With a place of any kind the client does not look for one by itself.
        """
        for place in assigned:
            self._consumer.seek(place, 0)
            self._consumer.pause(place)
        self._note(assigned, given=True)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        """Note them."""
        self._note(revoked, given=False)

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        """Note them: somebody else may have them already."""
        self._note(lost, given=False)

    def take(self) -> list[Change]:
        """Changes since the last call."""
        with self._lock:
            changes, self._changes = self._changes, []
        return changes

    def has_more(self) -> bool:
        """Whether there were changes since the last call of `take`."""
        with self._lock:
            return bool(self._changes)

    def _note(self, places: Iterable[Any], *, given: bool) -> None:
        numbers = frozenset(place.partition for place in places)
        with self._lock:
            self._changes.append(Change(given, numbers))
