"""Ends of partitions that a starting broker does not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from moescope.core.kafka.ends import end_offsets, first_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]


class StartingBroker:
    """What the client's consumer answers while a broker starts: of some partitions nothing."""

    def __init__(self, told: dict[TopicPartition, int | None]) -> None:
        self._told = told

    def end_offsets(
        self, places: list[TopicPartition], *, timeout_ms: float
    ) -> dict[TopicPartition, int | None]:
        """As the client does: without what it was not told."""
        assert timeout_ms > 0
        return {place: self._told[place] for place in places if place in self._told}

    beginning_offsets = end_offsets


@pytest.mark.parametrize("told", [{PLACES[0]: 3}, {PLACES[0]: 3, PLACES[1]: None}, {}])
@pytest.mark.parametrize("ask", [end_offsets, first_offsets])
def test_what_nobody_told_is_asked_again(
    ask: Callable[..., dict[TopicPartition, int]], told: dict[TopicPartition, int | None]
) -> None:
    """A partition that is left out is a broker to wait for, never an end of zero or a crash."""
    with pytest.raises(KafkaTimeoutError, match="Nobody told"):
        ask(StartingBroker(told), PLACES, 100.0)


def test_ends_are_told() -> None:
    """What was told comes back as it is."""
    told: dict[TopicPartition, int | None] = {PLACES[0]: 3, PLACES[1]: 0}
    assert end_offsets(StartingBroker(told), PLACES, 100.0) == told
