"""Ends of partitions that a starting broker does not tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import KafkaTimeoutError
from kafka.structs import OffsetAndTimestamp

from moescope.core.kafka.ends import end_offsets, first_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]


class StartingBroker:
    """The client's own answer when a broker left partitions out of what it told."""

    def __init__(self, told: dict[TopicPartition, int]) -> None:
        self._told = told

    def end_offsets(
        self, places: list[TopicPartition], *, timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """What the client's code makes of what arrived."""
        arrived = {
            place: OffsetAndTimestamp(offset, -1, -1)
            for place, offset in self._told.items()
            if place in places
        }
        network = SimpleNamespace(run=lambda *_: arrived)
        fetcher: Any = SimpleNamespace(_net=network, _fetch_offsets_by_times_async=None)
        found: dict[TopicPartition, int] = Fetcher.beginning_or_end_offset(
            fetcher, places, -1, timeout_ms
        )
        return found

    beginning_offsets = end_offsets


@pytest.mark.parametrize("told", [{PLACES[0]: 3}, {PLACES[1]: 0}, {}])
@pytest.mark.parametrize("ask", [end_offsets, first_offsets])
def test_what_nobody_told_is_asked_again(
    ask: Callable[..., dict[TopicPartition, int]], told: dict[TopicPartition, int]
) -> None:
    """A partition that is left out is a broker to wait for, never an end of zero or a crash."""
    with pytest.raises(KafkaTimeoutError, match="Nobody told"):
        ask(StartingBroker(told), PLACES, 100.0)


def test_ends_are_told() -> None:
    """What was told comes back as it is."""
    told = {PLACES[0]: 3, PLACES[1]: 0}
    assert end_offsets(StartingBroker(told), PLACES, 100.0) == told
