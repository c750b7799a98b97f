"""A topic that is not there, told from a broker that does not answer: clients wait for both."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from moescope.core.kafka.errors import absent_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ANSWER_SECONDS: Final = 1.0
_ANSWERS: Final = 2
"""The first may be that to a question which was asked before the topic was named."""


@contextmanager
def naming_absent(client: Any, topics: Collection[str]) -> Iterator[None]:
    """Ask a broker for something; where time ran out because of a topic, that is what is raised.

    Where time runs out, it is asked for the topics once more: what a client remembers of them may
    be older than their end. A broker that does not answer that either costs another second.

    Args:
        client: A consumer or a producer.
        topics: Without which the block cannot succeed.

    Raises:
        kafka.errors.UnknownTopicOrPartitionError: A broker answers, and one of them is not there.
        kafka.errors.TopicAuthorizationFailedError: One of them is hidden from us.
        kafka.errors.KafkaTimeoutError: Time ran out for another reason.
    """
    from kafka.errors import (  # noqa: PLC0415 (imported when a client is opened)
        KafkaTimeoutError,
        TopicAuthorizationFailedError,
    )

    try:
        yield
    except KafkaTimeoutError as error:
        cluster = _cluster(client)
        if cluster is None or not _is_told_of(cluster, topics):
            raise
        for topic in topics:
            if topic in cluster.unauthorized_topics:
                raise TopicAuthorizationFailedError(topic) from error
            if not cluster.partitions_for_topic(topic):
                raise absent_topic(topic) from error
        raise


def _cluster(client: Any) -> Any:
    """What a client knows of topics; None where the library keeps it elsewhere."""
    network = getattr(client, "_client", None)
    return getattr(client, "_metadata", None) or getattr(network, "cluster", None)


def _is_told_of(cluster: Any, topics: Collection[str]) -> bool:
    """Whether a broker says now which of the topics there are."""
    for topic in topics:
        cluster.add_topic(topic)
    for _ in range(_ANSWERS):
        told_before = getattr(cluster, "_last_successful_refresh_ms", None)
        ended = threading.Event()
        cluster.request_update().add_both(lambda *_, ended=ended: ended.set())
        ended.wait(ANSWER_SECONDS)
        if getattr(cluster, "_last_successful_refresh_ms", None) == told_before:
            return False
    return True
