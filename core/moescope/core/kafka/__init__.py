"""Kafka as the transport: topics, clients and errors, declared once for all components."""

from moescope.core.kafka.clients import open_admin, open_consumer, open_producer
from moescope.core.kafka.errors import (
    BrokerDeclinedError,
    BrokerRefusedError,
    BrokerUnreachableError,
    KafkaRecordTooLargeError,
    TopicMissingError,
    explain,
    missing_topic,
)
from moescope.core.kafka.topics import Topic, TopicSpec, declared_topics, topic_name

__all__ = [
    "BrokerDeclinedError",
    "BrokerRefusedError",
    "BrokerUnreachableError",
    "KafkaRecordTooLargeError",
    "Topic",
    "TopicMissingError",
    "TopicSpec",
    "declared_topics",
    "explain",
    "missing_topic",
    "open_admin",
    "open_consumer",
    "open_producer",
    "topic_name",
]
