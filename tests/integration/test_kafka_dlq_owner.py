"""The way of a letter through a fleet's owner: put aside, published, replayed, counted once."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

from support.batches import make_batch
from support.kafka_settings import committed_records, kafka_settings, make_topics

from moescope.console.fleet_work import FleetWork
from moescope.console.kafka.letters import Selection
from moescope.console.kafka.replay import ReplayOrder, replay_letters
from moescope.console.opened_store import OpenedStore, opened_store
from moescope.core.clock import SystemClock
from moescope.core.kafka import open_producer
from moescope.core.self_metrics import SelfMetrics
from moescope.core.wire import decode, encode_batch

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from support.broker_choice import SharedBroker

BATCHES = 3


def _drain(parts: OpenedStore) -> None:
    FleetWork(parts, SelfMetrics()).drain(threading.Event())


def _batches(parts: OpenedStore) -> list[tuple[int, int, str]]:
    with closing(parts.store.cursor()) as cursor:
        return cursor.execute(
            "SELECT incarnation, sequence, verdict FROM batches ORDER BY log_offset"
        ).fetchall()


def test_letters_of_an_old_owner_are_counted_by_the_next(
    kafka_broker: SharedBroker,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the owner cannot read lies in the topic; replayed after its upgrade, it counts once."""
    settings = kafka_settings(
        kafka_broker.bootstrap, topic_prefix, kafka__partitions=1, data__directory=str(tmp_path)
    )
    make_topics(settings)
    payloads = [
        encode_batch(
            make_batch(
                seed, first_position=64 * seed, prompt_tokens=10_000, header={"sequence": seed}
            )
        )
        for seed in range(BATCHES)
    ]
    with closing(open_producer(settings)) as producer:
        for payload in payloads:
            producer.send(f"{topic_prefix}.routing", key=b"node-0", value=payload).get(10)
    with opened_store(settings, closes_windows=True) as parts:
        with monkeypatch.context() as older:
            older.setattr(decode, "MAJOR_VERSION", 9)
            _drain(parts)
        assert _batches(parts) == []
        letters = committed_records(settings, f"{topic_prefix}.dlq")
        assert [each.value for each in letters] == payloads
        order = ReplayOrder(
            selection=Selection(), again=False, incarnation=77, author="test", reason=""
        )
        lines = replay_letters(settings, order, SystemClock(), lambda _: None)
        assert [line.outcome for line in lines] == ["replayed"] * BATCHES
        _drain(parts)
        assert _batches(parts) == [(77, number, "accepted") for number in range(BATCHES)]
        with closing(parts.store.cursor()) as cursor:
            (counted,) = cursor.execute(
                "SELECT records, kept FROM dead_letter_counts WHERE reason = 'unknown_version'"
            ).fetchall()
        assert counted == (BATCHES, BATCHES)
        # Marks of the replay are no letters: nothing is published twice.
        assert len(committed_records(settings, f"{topic_prefix}.dlq")) == 3 * BATCHES
