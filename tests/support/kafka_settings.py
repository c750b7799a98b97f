"""Settings, topics and records of a test's own part of the broker."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from support.fleet_processes import wait_for

from moescope.core.kafka import declared_topics, open_admin, open_consumer
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from moescope.core.settings import Settings

OPEN_TRANSACTION_S = 60.0
"""More than the broker leaves any test's transaction open."""


def kafka_settings(bootstrap: str, prefix: str, **options: object) -> Settings:
    """Settings of one test: its broker, its topics, and few partitions.

    Args:
        bootstrap: Address of the broker.
        prefix: Of topics and group.
        options: Further settings, `section__key`; they win.
    """
    named = {name.replace("__", "."): value for name, value in options.items()}
    return load_settings(
        environment={},
        options={
            "kafka.bootstrap_servers": bootstrap,
            "kafka.topic_prefix": prefix,
            "kafka.group": prefix,
            "kafka.partitions": 2,
            **named,
        },
    )


def variables_of(settings: Settings) -> dict[str, str]:
    """Environment variables that give a command the same settings, as far as they are options."""
    return {
        "MOESCOPE_" + name.upper().replace(".", "_"): str(settings[name])
        for name, origin in settings.origins.items()
        if origin == "option"
    }


def make_topics(settings: Settings) -> None:
    """Make all topics as declared."""
    with closing(open_admin(settings)) as admin:
        admin.create_topics(
            {
                spec.name: {"num_partitions": spec.partitions, "configs": dict(spec.configs)}
                for spec in declared_topics(settings)
            },
            wait_for_metadata=True,
        )


def committed_records(settings: Settings, topic: str, partition: int = 0) -> list[Any]:
    """All committed records of a partition, as the library gives them.

    What a killed process left open holds back all that was committed after it, until the broker
    ends it: this waits for that.
    """
    place = TopicPartition(topic, partition)
    with closing(open_consumer(settings, isolation_level="read_uncommitted")) as consumer:
        end = consumer.end_offsets([place])[place]
    records: list[Any] = []
    with closing(open_consumer(settings)) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)

        def reached() -> bool:
            if consumer.position(place) < end:
                records.extend(consumer.poll(500).get(place, []))
            position: int = consumer.position(place)
            return position >= int(end)

        wait_for(f"all transactions of {topic}-{partition}", reached, OPEN_TRANSACTION_S, pause=0)
    return records
