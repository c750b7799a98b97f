"""Reading topics from a broker, and making them as declared."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from moescope.console.kafka.topic_plan import FoundTopic, Remedy
from moescope.core.kafka import BrokerRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moescope.console.kafka.topic_plan import Difference
    from moescope.core.kafka import TopicSpec

_DONE: Final = "OK"
_MADE: Final = frozenset({0, 36})
"""No error, and `TOPIC_ALREADY_EXISTS`: somebody else makes them at the same time."""


def read_topics(admin: Any, names: Sequence[str]) -> dict[str, FoundTopic]:
    """The topics of these names that exist.

    Args:
        admin: An admin client of the library.
        names: With their prefix.

    Raises:
        BrokerRefusedError: Their configuration may not be read.
    """
    there = [
        each
        for each in admin.describe_topics(list(names))
        if not each["error_code"] and each["partitions"]
    ]
    if not there:
        return {}
    configs = admin.describe_configs(
        [_resource(each["name"]) for each in there], config_filter="all"
    )["topic"]
    return {each["name"]: _found(each, configs.get(each["name"]) or {}) for each in there}


def apply_differences(
    admin: Any,
    wanted: Sequence[TopicSpec],
    todo: Sequence[Difference],
    replication: int,
) -> None:
    """Remove every difference that has no remedy by hand.

    Args:
        admin: An admin client of the library.
        wanted: The declaration.
        todo: What differs from it.
        replication: Of new topics; -1: the broker's default.

    Raises:
        BrokerRefusedError: The broker did not do it.
    """
    missing = {each.topic for each in todo if each.remedy is Remedy.CREATE}
    if missing:
        _create(admin, [spec for spec in wanted if spec.name in missing], replication)
    altered: dict[str, dict[str, str]] = defaultdict(dict)
    for each in todo:
        if each.remedy is Remedy.ALTER:
            altered[each.topic][each.what] = each.wanted
    if altered:
        _check_done(
            admin.alter_configs(
                [_resource(name, configs) for name, configs in altered.items()],
                raise_on_unknown=False,
            )["topic"]
        )


def _create(admin: Any, missing: Sequence[TopicSpec], replication: int) -> None:
    answer = admin.create_topics(
        {
            spec.name: {
                "num_partitions": spec.partitions,
                "replication_factor": replication,
                "configs": dict(spec.configs),
            }
            for spec in missing
        },
        raise_errors=False,
    )
    refused = {
        each["name"]: each["error_message"] or f"error {each['error_code']}"
        for each in answer["topics"]
        if each["error_code"] not in _MADE
    }
    if refused:
        raise BrokerRefusedError(
            f"{', '.join(sorted(refused))} could not be made.",
            why="; ".join(sorted(set(refused.values()))),
            next_step="Check kafka.replication against the number of brokers, and that the user "
            "of this command may create topics.",
        )
    admin.wait_for_topics([spec.name for spec in missing])


def _found(described: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]) -> FoundTopic:
    if not configs:
        raise BrokerRefusedError(
            f"The configuration of {described['name']} cannot be read.",
            why="The broker gives it to nobody without the right DescribeConfigs on the topic.",
            next_step="Grant DescribeConfigs and AlterConfigs to the user of this command.",
        )
    partitions = described["partitions"]
    return FoundTopic(
        partitions=len(partitions),
        replication=min(len(each["replica_nodes"]) for each in partitions),
        configs={name: str(each["value"]) for name, each in configs.items()},
    )


def _check_done(answers: Mapping[str, str]) -> None:
    refused = {name: why for name, why in answers.items() if why != _DONE}
    if refused:
        raise BrokerRefusedError(
            f"The configuration of {', '.join(sorted(refused))} could not be changed.",
            why="; ".join(sorted(set(refused.values()))),
            next_step="Grant AlterConfigs to the user of this command, or change it with "
            "Kafka's own tools.",
        )


def _resource(name: str, configs: dict[str, str] | None = None) -> Any:
    from kafka.admin import ConfigResource, ConfigResourceType

    return ConfigResource(ConfigResourceType.TOPIC, name, configs)
