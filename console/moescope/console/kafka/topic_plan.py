"""How topics differ from their declaration, and what is to be done about it; no broker needed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from moescope.core.kafka import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from moescope.core.kafka import TopicSpec

BROKER_DEFAULT: Final = -1
"""A replication factor that is left to the broker."""


class Remedy(StrEnum):
    """Who removes a difference."""

    CREATE = "create"
    """`topics-apply` makes the topic."""
    ALTER = "alter"
    """`topics-apply` sets the configuration."""
    BY_HAND = "by hand"
    """Somebody has to decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A topic as a broker has it.

    Attributes:
        replication: Replicas of the partition that has the fewest.
    """

    partitions: int
    replication: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as declared.

    Attributes:
        what: `topic`, `partitions`, `replication` or the name of a configuration.
        next_step: What to do where the remedy is by hand.
    """

    topic: str
    what: str
    wanted: str
    found: str
    remedy: Remedy
    next_step: str = ""


def differences(
    wanted: Sequence[TopicSpec], found: Mapping[str, FoundTopic], replication: int = BROKER_DEFAULT
) -> list[Difference]:
    """Everything that is not as declared; configurations that are not declared are free.

    Args:
        wanted: The declaration.
        found: By name; a name that is missing is a topic that is missing.
        replication: Setting `kafka.replication`.
    """
    return [each for spec in wanted for each in _topic(spec, found.get(spec.name), replication)]


def cautions(found: Mapping[str, FoundTopic]) -> list[str]:
    """What is as declared, and still loses data on a bad day."""
    return [
        f"{name} has {topic.replication} replicas, and min.insync.replicas = 1: a record is "
        "acknowledged by one broker alone, and lost with it; set 2."
        for name, topic in sorted(found.items())
        if topic.replication > 1 and topic.configs.get("min.insync.replicas") == "1"
    ]


def _topic(spec: TopicSpec, found: FoundTopic | None, replication: int) -> Iterator[Difference]:
    if found is None:
        yield Difference(
            topic=spec.name,
            what="topic",
            wanted=f"{spec.partitions} partition{'s' * (spec.partitions != 1)}",
            found="missing",
            remedy=Remedy.CREATE,
        )
        return
    if found.partitions != spec.partitions:
        yield Difference(
            topic=spec.name,
            what="partitions",
            wanted=str(spec.partitions),
            found=str(found.partitions),
            remedy=Remedy.BY_HAND,
            next_step=_partitions_step(spec, found.partitions),
        )
    if replication not in {BROKER_DEFAULT, found.replication}:
        yield Difference(
            topic=spec.name,
            what="replication",
            wanted=str(replication),
            found=str(found.replication),
            remedy=Remedy.BY_HAND,
            next_step="Move replicas with Kafka's own kafka-reassign-partitions.",
        )
    for name, value in sorted(spec.configs.items()):
        if found.configs.get(name) != value:
            yield Difference(
                topic=spec.name,
                what=name,
                wanted=value,
                found=found.configs.get(name, "unknown"),
                remedy=Remedy.ALTER,
            )


def _partitions_step(spec: TopicSpec, found: int) -> str:
    if spec.topic is Topic.ROUTING:
        return (
            f"Set kafka.partitions = {found}, or choose a new kafka.topic_prefix: with another "
            "number a node's batches would move to another partition in the middle of its "
            "requests."
        )
    return (
        f"Stop what uses it, delete {spec.name} and run `moescope kafka topics-apply`, or choose "
        "a new kafka.topic_prefix: its records have one order, so it has one partition."
    )
