"""Emissions sent to a test's deltas topic, each in a transaction as processors do."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from moescope.core.clock import SystemClock
from moescope.core.emission_records import emission_records
from moescope.core.kafka import Topic, open_producer, topic_name
from moescope.core.self_metrics import SelfMetrics
from moescope.storage.deltas import DeltasReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moescope.core.emission import Emission
    from moescope.core.emission_records import EmissionRecord
    from moescope.core.settings import Settings
    from moescope.storage import Store

PATIENCE_SECONDS = 90.0


def send_emissions(settings: Settings, sender: str, emissions: Iterable[Emission]) -> None:
    """One committed transaction per emission."""
    with transactions(settings, sender) as producer:
        for number, emission in enumerate(emissions):
            producer.begin_transaction()
            send_records(settings, producer, emission_records(emission, sender, number))
            producer.commit_transaction()


@contextmanager
def transactions(settings: Settings, sender: str) -> Iterator[Any]:
    """A producer of a processor of this name."""
    prefix = settings["kafka.topic_prefix"]
    with closing(open_producer(settings, transactional_id=f"{prefix}-{sender}")) as producer:
        producer.init_transactions()
        yield producer


def send_records(
    settings: Settings,
    producer: Any,
    records: Iterable[EmissionRecord],
) -> None:
    """Send records and wait until each is acknowledged."""
    topic = topic_name(settings, Topic.DELTAS)
    sent = [
        producer.send(topic, key=each.key, value=each.value, headers=list(each.headers))
        for each in records
    ]
    for each in sent:
        each.get(timeout=PATIENCE_SECONDS)


def apply_deltas(settings: Settings, store: Store, metrics: SelfMetrics | None = None) -> list[str]:
    """Read the topic into a store until nothing is left; gives what was told."""
    told: list[str] = []
    reader = DeltasReader(settings, store, metrics or SelfMetrics(), SystemClock(), told.append)
    reader.run(threading.Event(), until_idle=True)
    return told
