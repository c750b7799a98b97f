"""The topics, declared once: names, partitions, retention, sizes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from moescope.core.wire.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moescope.core.settings import Settings

MAX_MESSAGE_BYTES: Final = DEFAULT_LIMITS.compressed_bytes + (1 << 16)
"""The largest routing batch that a reader accepts, and room for key, headers and framing."""

_HOUR_MS: Final = 3_600_000


class Topic(StrEnum):
    """What each topic is for; its name is the prefix, a dot and the value."""

    ROUTING = "routing"
    """Routing batches, keyed by node, from agents to processors."""
    DELTAS = "deltas"
    """Emissions of processors, in transactions, to the store owner. One partition: one order."""
    DLQ = "dlq"
    """Records that could not be used, with the place they came from."""
    CONTROL = "control"
    """Thresholds in force, from the store owner to processors; the newest of each key is kept."""
    ALERTS = "alerts"
    """What fired, for whoever subscribes."""


PURPOSES: Final[Mapping[Topic, str]] = MappingProxyType(
    {
        Topic.ROUTING: "Routing batches from agents, keyed by node",
        Topic.DELTAS: "Emissions of processors, in transactions, for the store's owner",
        Topic.DLQ: "Records that could not be used, keyed by the place they came from, and what "
        "became of their replay",
        Topic.CONTROL: "Thresholds in force, for processors; the newest of each key",
        Topic.ALERTS: "Notifications, keyed by alert",
    }
)
"""What each topic holds, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """How a topic has to be.

    Attributes:
        name: With its prefix.
        partitions: Exactly so many.
        configs: Topic configuration that moescope relies on; what is not named here is free.
    """

    topic: Topic
    name: str
    partitions: int
    configs: Mapping[str, str]


def topic_name(settings: Settings, topic: Topic) -> str:
    """Name of a topic under the configured prefix."""
    return f"{settings['kafka.topic_prefix']}.{topic.value}"


def declared_topics(settings: Settings) -> tuple[TopicSpec, ...]:
    """Every topic as the settings want it."""
    retention = {
        Topic.ROUTING: settings["kafka.routing_retention"],
        Topic.DELTAS: settings["kafka.routing_retention"],
        Topic.DLQ: settings["kafka.dlq_retention"],
        Topic.ALERTS: settings["kafka.alerts_retention"],
    }
    return tuple(
        TopicSpec(
            topic=topic,
            name=topic_name(settings, topic),
            partitions=settings["kafka.partitions"] if topic is Topic.ROUTING else 1,
            configs=_configs(retention.get(topic)),
        )
        for topic in Topic
    )


def _configs(retention_hours: float | None) -> dict[str, str]:
    configs = {
        # Batches are compressed already; brokers would only spend time on it.
        "compression.type": "uncompressed",
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
        # The broker's clock is what nodes' clocks are compared with.
        "message.timestamp.type": "LogAppendTime",
    }
    if retention_hours is None:
        return configs | {"cleanup.policy": "compact"}
    return configs | {
        "cleanup.policy": "delete",
        "retention.ms": str(round(retention_hours * _HOUR_MS)),
    }
