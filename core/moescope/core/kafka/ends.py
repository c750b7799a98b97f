"""Where partitions begin and end now, or an error: the client leaves out what it was not told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.core.kafka.absent_topics import naming_absent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def first_offsets(consumer: Any, places: Collection[Any], timeout_ms: float) -> dict[Any, int]:
    """Offset of the first record that each `kafka.TopicPartition` still holds.

    Raises:
        kafka.errors.KafkaTimeoutError: Of some nothing was told, as while a broker starts.
        kafka.errors.UnknownTopicOrPartitionError: Their topic is not there.
    """
    with naming_absent(consumer, _topics(places)):
        return _of_all(consumer.beginning_offsets, places, timeout_ms)


def end_offsets(consumer: Any, places: Collection[Any], timeout_ms: float) -> dict[Any, int]:
    """Offset after the last record of each `kafka.TopicPartition`; raises as `first_offsets`."""
    with naming_absent(consumer, _topics(places)):
        return _of_all(consumer.end_offsets, places, timeout_ms)


def _topics(places: Collection[Any]) -> list[str]:
    return sorted({place.topic for place in places})


def _of_all(
    ask: Callable[..., dict[Any, int]], places: Collection[Any], timeout_ms: float
) -> dict[Any, int]:
    from kafka.errors import KafkaTimeoutError  # noqa: PLC0415 (imported when a client is opened)

    try:
        found = ask(list(places), timeout_ms=timeout_ms)
    except KeyError as error:
        # The client looks for a partition that the answer left out, as a starting broker's may.
        raise KafkaTimeoutError(f"Nobody told of {error}") from error
    missing = [place for place in places if found.get(place) is None]
    if missing:
        raise KafkaTimeoutError(f"Nobody told of {missing[0]}")
    return found
