"""What processors wrote to the deltas topic, applied to a store one emission at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from support.kafka_settings import committed_records
from support.small_windows import open_store

from moescope.core.emission_records import EmissionAssembler, EmissionRecord
from moescope.core.kafka import Topic, topic_name

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.emission import Emission
    from moescope.core.settings import Settings


def emissions_of(settings: Settings) -> list[Emission]:
    """All emissions that are committed, in the topic's order."""
    assembler = EmissionAssembler()
    found = [
        assembler.add(EmissionRecord(record.key, record.value, record.headers))
        for record in committed_records(settings, topic_name(settings, Topic.DELTAS))
    ]
    assert not assembler.forgotten
    return [each for each in found if each is not None]


def apply_deltas(settings: Settings, store_file: Path) -> list[Emission]:
    """Apply them to a store that waits for partitions which have more to come."""
    emissions = emissions_of(settings)
    last = {
        progress.partition: progress.emitted_to
        for emission in emissions
        for progress in emission.progress
    }
    reached = dict.fromkeys(last, 0)
    with open_store(store_file) as store:
        for emission in emissions:
            reached |= {each.partition: each.emitted_to for each in emission.progress}
            unread = frozenset(name for name, end in last.items() if reached[name] < end)
            store.apply(replace(emission, unread=unread))
    return emissions
