"""What `moescope doctor` says of the broker and its topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moescope.console.findings import Finding, Outcome
from moescope.console.kafka.broker_limits import CHECK, limit_findings, replication_findings
from moescope.console.kafka.clients import opened_admin
from moescope.console.kafka.topic_plan import Remedy, cautions, differences
from moescope.console.kafka.topics import read_topics
from moescope.core.kafka import Topic, declared_topics, topic_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moescope.console.kafka.topic_plan import Difference
    from moescope.core.settings import Settings

TOPICS: Final = "kafka topics"


def check_broker(settings: Settings) -> Iterator[Finding]:
    """Whether the broker answers, accepts us, and is as moescope needs it; none without Kafka.

    Raises:
        MissingChecksumError: The client would be thirty times slower.
        BrokerUnreachableError: Nobody answers within `kafka.connect_timeout`.
        BrokerRefusedError: Who we are is not accepted.
    """
    if not settings["kafka.bootstrap_servers"].strip(", "):
        return
    wanted = declared_topics(settings)
    with opened_admin(settings, "checking the broker") as admin:
        brokers = admin.describe_cluster()["brokers"]
        values = {
            f"broker {each['broker_id']}": _settings_of(admin, each["broker_id"])
            for each in brokers
        }
        found = read_topics(admin, [spec.name for spec in wanted])
    yield Finding(
        CHECK,
        Outcome.OK,
        f"{settings['kafka.bootstrap_servers']} answers; {len(brokers)} in the cluster, "
        f"{settings['kafka.security_protocol']}",
    )
    for name, broker in values.items():
        yield from limit_findings(name, broker, settings)
    yield from replication_findings(next(iter(values.values()), {}), len(brokers), settings)
    different = differences(wanted, found, settings["kafka.replication"])
    yield from (_topic_finding(each, settings) for each in different)
    for caution in cautions(found):
        yield Finding(TOPICS, Outcome.WARNING, caution, "Change it with Kafka's own tools.")
    if not different:
        yield Finding(TOPICS, Outcome.OK, f"{len(found)} topics are as declared")


def _topic_finding(each: Difference, settings: Settings) -> Finding:
    has_one_order = each.topic != topic_name(settings, Topic.ROUTING)
    is_broken = each.remedy is Remedy.CREATE or (each.what == "partitions" and has_one_order)
    return Finding(
        TOPICS,
        Outcome.FAILURE if is_broken else Outcome.WARNING,
        f"{each.topic}: {each.what} is {each.found}, should be {each.wanted}",
        each.next_step or "`moescope kafka topics-apply --yes`",
    )


def _settings_of(admin: Any, broker_id: int) -> Mapping[str, str]:
    from kafka.admin import ConfigResource, ConfigResourceType

    resource = ConfigResource(ConfigResourceType.BROKER, str(broker_id))
    found = admin.describe_configs([resource], config_filter="all")["broker"]
    return {
        name: str(each["value"])
        for name, each in (found.get(str(broker_id)) or {}).items()
        if each["value"] is not None
    }
