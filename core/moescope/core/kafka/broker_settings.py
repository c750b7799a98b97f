"""What moescope asks of a Kafka broker's own settings; those of topics are set per topic."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from moescope.core.kafka.topics import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

_WEEK_MINUTES = 7 * 24 * 60

BROKER_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # A routing batch travels as one record, and is never split.
        "message.max.bytes": str(MAX_MESSAGE_BYTES),
        # A follower that cannot fetch the largest record falls out of the in-sync replicas.
        "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES),
        # A mistyped name must fail, not become a topic with the wrong partitions and retention.
        "auto.create.topics.enable": "false",
        # An acknowledged record is never given up for availability.
        "unclean.leader.election.enable": "false",
        # A processor group that was off for a holiday continues where it stopped.
        "offsets.retention.minutes": str(4 * _WEEK_MINUTES),
        # A killed processor's partitions move on within seconds, where that is asked for.
        "group.min.session.timeout.ms": "1000",
        # A transaction left open by a killed processor holds committed readers back no longer.
        "transaction.max.timeout.ms": "120000",
        # And is ended about a second after its time is over, not ten.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }
)
"""Setting of any broker → its value; docs and deployment files are written from it."""

SINGLE_NODE_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # There is one node to keep replicas on.
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # Partitions of internal topics spread coordination over nodes: one node does it all, and
        # starts sooner. A cluster that is to grow needs Kafka's default of 50 from the start.
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        # Members on one machine start together: there is nobody to wait for.
        "group.initial.rebalance.delay.ms": "0",
        # One process is controller and broker: a restart after a kill waits for the old session.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
)
"""What a broker without peers needs on top: docker compose, `make kafka` and the tests."""
