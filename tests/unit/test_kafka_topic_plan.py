"""What topics-apply would do, and what doctor says of a broker's limits, for made-up brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from moescope.console.findings import Outcome
from moescope.console.kafka.broker_limits import limit_findings, replication_findings
from moescope.console.kafka.topic_plan import FoundTopic, Remedy, cautions, differences
from moescope.core.kafka import declared_topics
from moescope.core.kafka.broker_settings import BROKER_SETTINGS
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from moescope.core.settings import Settings


def _settings(**options: object) -> Settings:
    named = {f"kafka.{name}": value for name, value in options.items()}
    return load_settings(environment={}, options={"kafka.partitions": 4, **named})


def _as_declared(settings: Settings, **configs: str) -> dict[str, FoundTopic]:
    return {
        spec.name: FoundTopic(
            partitions=spec.partitions,
            replication=1,
            configs={**spec.configs, "segment.ms": "1", **configs},
        )
        for spec in declared_topics(settings)
    }


def test_topics_as_declared_need_nothing() -> None:
    """Configurations that are not declared are nobody's business."""
    settings = _settings()
    assert differences(declared_topics(settings), _as_declared(settings)) == []


def test_missing_topic_is_made_with_its_partitions() -> None:
    """A missing topic is one difference, not one per configuration."""
    settings = _settings()
    found = _as_declared(settings)
    del found["moescope.routing"]
    (only,) = differences(declared_topics(settings), found)
    assert (only.what, only.wanted, only.remedy) == ("topic", "4 partitions", Remedy.CREATE)


def test_configuration_that_differs_or_is_absent_is_set() -> None:
    """Both a wrong and an unreadable value of a declared configuration are set."""
    settings = _settings()
    found = _as_declared(settings)
    configs = dict(found["moescope.dlq"].configs)
    configs["retention.ms"] = "5"
    del configs["cleanup.policy"]
    found["moescope.dlq"] = FoundTopic(partitions=1, replication=1, configs=configs)
    assert [
        (each.topic, each.what, each.wanted, each.found, each.remedy)
        for each in differences(declared_topics(settings), found)
    ] == [
        ("moescope.dlq", "cleanup.policy", "delete", "unknown", Remedy.ALTER),
        ("moescope.dlq", "retention.ms", str(336 * 3_600_000), "5", Remedy.ALTER),
    ]


@pytest.mark.parametrize(
    ("topic", "step"),
    [("moescope.routing", "kafka.topic_prefix"), ("moescope.deltas", "one order")],
)
def test_number_of_partitions_is_never_changed(topic: str, step: str) -> None:
    """Another number of partitions is told, with what to do, and left."""
    settings = _settings()
    found = _as_declared(settings)
    found[topic] = FoundTopic(partitions=7, replication=1, configs=found[topic].configs)
    (only,) = differences(declared_topics(settings), found)
    assert (only.what, only.found, only.remedy) == ("partitions", "7", Remedy.BY_HAND)
    assert step in only.next_step


def test_replication_is_judged_only_where_it_is_set() -> None:
    """-1 leaves replicas to the broker; a number is wanted exactly, and by hand."""
    for replication, expected in ((-1, 0), (1, 0), (3, 5)):
        settings = _settings(replication=replication)
        found = differences(declared_topics(settings), _as_declared(settings), replication)
        assert len(found) == expected
        assert {each.remedy for each in found} <= {Remedy.BY_HAND}


def test_one_replica_in_sync_is_a_caution_where_there_are_more() -> None:
    """With several replicas, an acknowledgement of one broker alone is worth a warning."""
    settings = _settings()
    found = _as_declared(settings, **{"min.insync.replicas": "1"})
    assert cautions(found) == []
    name, topic = next(iter(found.items()))
    replicated = FoundTopic(partitions=topic.partitions, replication=3, configs=topic.configs)
    (caution,) = cautions({**found, name: replicated})
    assert name in caution


GOOD = {
    **BROKER_SETTINGS,
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
}


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"message.max.bytes": "1048588"}, {}),
        ({"replica.fetch.max.bytes": "1048576"}, {}),
        ({"offsets.retention.minutes": "10"}, {}),
        ({"auto.create.topics.enable": "true"}, {}),
        ({"group.min.session.timeout.ms": "20000"}, {}),
        ({"group.max.session.timeout.ms": "5000"}, {}),
        ({"transaction.max.timeout.ms": "5000"}, {}),
        ({}, {"transaction_timeout": 500}),
        ({}, {"session_timeout": 2}),
    ],
)
def test_each_limit_of_the_broker_is_a_warning_of_its_own(
    changed: dict[str, str], options: dict[str, Any]
) -> None:
    """A limit that is too tight is named once, with what comes of it."""
    assert list(limit_findings("broker 1", GOOD, _settings())) == []
    (finding,) = limit_findings("broker 1", {**GOOD, **changed}, _settings(**options))
    assert finding.outcome is Outcome.WARNING
    assert finding.next_step
    assert all(name in finding.detail for name in changed)


def test_settings_that_may_not_be_read_are_not_judged() -> None:
    """A broker that shows its settings to nobody is not called wrong."""
    assert list(limit_findings("broker 1", {}, _settings())) == []
    assert list(replication_findings({}, 3, _settings())) == []


def test_topics_on_one_broker_of_several_are_a_warning() -> None:
    """A cluster whose default is one replica would lose topics with a broker."""
    one = {"default.replication.factor": "1"}
    assert list(replication_findings(one, 1, _settings())) == []
    assert list(replication_findings(one, 3, _settings(replication=3))) == []
    assert len(list(replication_findings(one, 3, _settings()))) == 1
