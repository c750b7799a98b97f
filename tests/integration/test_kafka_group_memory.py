"""Where a processor goes on when the memory of the one before it is gone, or it has a double."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from kafka import TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import OffsetAndMetadata
from support.drained_deltas import emissions_of
from support.fleet_processes import wait_for
from support.processor_fleet import emitted_to
from support.routed_topic import make_streams, make_topics, send, topic_settings
from support.small_windows import CONFIG

from moescope.core.clock import SystemClock
from moescope.core.errors import MoescopeError, SettingsError
from moescope.core.kafka import Topic, open_admin, open_consumer, topic_name
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.finish import WindowFinisher
from moescope.processors.group.errors import DuplicateProcessorError
from moescope.processors.group.joining import joined_group
from moescope.processors.group.offset_note import OffsetNote, read_note

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from support.broker_choice import SharedBroker

    from moescope.core.settings import Settings
    from moescope.processors.pipeline import Pipeline


PATIENCE_SECONDS = 60.0


def join(
    settings: Settings,
    log: Callable[[str], None] = print,
    metrics: SelfMetrics | None = None,
) -> AbstractContextManager[Pipeline]:
    """A processor of the group."""
    return joined_group(
        settings,
        WindowFinisher(),
        metrics=metrics or SelfMetrics(),
        clock=SystemClock(),
        log=log,
        patient=False,
        config=CONFIG,
    )


def process(settings: Settings) -> SelfMetrics:
    """Be the group's only processor until nothing is left; gives what it counts."""
    metrics = SelfMetrics()
    with join(settings, metrics=metrics) as pipeline:
        pipeline.run(until_idle=True)
    return metrics


def empty_the_deltas(settings: Settings) -> None:
    """Take all states away, as retention does with a partition that was silent for long."""
    with closing(open_admin(settings)) as admin:
        admin.delete_records({TopicPartition(topic_name(settings, Topic.DELTAS), 0): -1})


def set_the_offset(settings: Settings) -> None:
    """Put the group back to where it is, as people do with Kafka's own tools."""
    with closing(open_admin(settings)) as admin:
        place = TopicPartition(topic_name(settings, Topic.ROUTING), 0)
        offset = emitted_to(settings, admin)[0]
        admin.alter_group_offsets(
            settings["kafka.group"], {place: OffsetAndMetadata(offset, "", -1)}
        )


@pytest.mark.parametrize("lose", [empty_the_deltas, set_the_offset])
def test_lost_memory_is_said_once_and_the_stream_goes_on(
    kafka_broker: SharedBroker, topic_prefix: str, lose: Callable[[Settings], None]
) -> None:
    """Records go on from the last commit; one letter tells that what was open is short."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    records = make_streams(12, (0,))[0]
    send(settings, {0: records[:30]})
    process(settings)
    lose(settings)
    send(settings, {0: records[30:]})
    process(settings)
    process(settings)
    after = [each for each in emissions_of(settings) if each.progress[0].emitted_to > 30]
    letters = [letter for each in after for letter in each.dead_letters]
    assert [(each.offset, each.reason) for each in letters if each.reason == "state_lost"] == [
        (30, "state_lost")
    ]
    offsets = [batch.offset for each in after for batch in each.batches]
    assert min(offsets) >= 30
    assert after[-1].progress[0].emitted_to == len(records)


def test_records_that_retention_took_from_a_group_are_one_letter(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """Nine records are gone that nobody had read: told, counted, and all behind them are read."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    records = make_streams(12, (0,))[0]
    send(settings, {0: records[:20]})
    process(settings)
    send(settings, {0: records[20:]})
    with closing(open_admin(settings)) as admin:
        admin.delete_records({TopicPartition(topic_name(settings, Topic.ROUTING), 0): 29})
    metrics = process(settings)
    after = [each for each in emissions_of(settings) if each.progress[0].emitted_to > 20]
    letters = [letter for each in after for letter in each.dead_letters]
    gaps = [(each.offset, each.detail) for each in letters if each.reason == "log_gap"]
    assert gaps == [(20, "9 records: removed by the topic's retention")]
    partition = f"{topic_name(settings, Topic.ROUTING)}-0"
    assert metrics.value("moescope_processor_gap_records_total", partition=partition) == 9
    read = {batch.offset for each in after for batch in each.batches}
    assert min(read) >= 29
    assert after[-1].progress[0].emitted_to == len(records)


def test_doubles_of_a_processor_end_with_one_that_is_told(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """Two living processors of one name: one is told so and ends, and nothing is counted twice."""
    settings = topic_settings(
        kafka_broker.bootstrap, topic_prefix, kafka__instance_id="processor-1"
    )
    make_topics(settings)
    records = make_streams(13, (0,), passes=100)[0]
    told: list[DuplicateProcessorError] = []
    stop = threading.Event()

    def live() -> None:
        try:
            with join(settings) as pipeline:
                pipeline.run(stop=stop)
        except DuplicateProcessorError as error:
            told.append(error)

    doubles = [threading.Thread(target=live, daemon=True) for _ in range(2)]
    for each in doubles:
        each.start()
    sent = 0
    while not told and sent < len(records):
        send(settings, {0: records[sent : sent + 1]})
        sent += 1
        time.sleep(0.2)
    send(settings, {0: records[sent:]})
    stop.set()
    for each in doubles:
        each.join(PATIENCE_SECONDS)
    assert len(told) == 1
    assert "kafka.instance_id" in told[0].next_step
    process(settings)
    offsets = [batch.offset for each in emissions_of(settings) for batch in each.batches]
    assert len(offsets) == len(set(offsets))
    assert has_emitted(settings, len(records))


def test_a_processor_that_is_fenced_once_joins_again(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """A member of its name that comes and goes costs it a rebalance, and not its life."""
    settings = topic_settings(
        kafka_broker.bootstrap, topic_prefix, kafka__instance_id="processor-1"
    )
    make_topics(settings)
    records = make_streams(14, (0,), passes=8)[0]
    said: list[str] = []
    stop = threading.Event()
    failures: list[MoescopeError] = []
    with join(settings, said.append) as pipeline:

        def live() -> None:
            try:
                pipeline.run(stop=stop)
            except MoescopeError as error:
                failures.append(error)

        thread = threading.Thread(target=live, daemon=True)
        thread.start()
        try:
            send(settings, {0: records[:20]})
            wait_for("a commit", lambda: has_emitted(settings, 20), PATIENCE_SECONDS)
            with closing(
                open_consumer(
                    settings,
                    group_id=settings["kafka.group"],
                    group_instance_id="processor-1",
                    partition_assignment_strategy=[CooperativeStickyAssignor],
                    session_timeout_ms=6_000,
                )
            ) as double:
                double.subscribe([topic_name(settings, Topic.ROUTING)])
                wait_for(
                    "the double's place",
                    lambda: double.poll(timeout_ms=100) is not None and double.assignment(),
                    PATIENCE_SECONDS,
                )
            # With nothing to commit, too.
            wait_for(
                "the fence",
                lambda: any("joining again, 1 of" in line for line in said),
                PATIENCE_SECONDS,
            )
            send(settings, {0: records[20:]})
            wait_for("the rest", lambda: has_emitted(settings, len(records)), PATIENCE_SECONDS)
        finally:
            stop.set()
            thread.join()
    assert not failures
    assert len([line for line in said if "joining again" in line]) == 1
    offsets = [batch.offset for each in emissions_of(settings) for batch in each.batches]
    assert len(offsets) == len(set(offsets))
    assert has_emitted(settings, len(records))


def has_emitted(settings: Settings, end: int) -> bool:
    """Whether the group's note says that a partition is applied so far."""
    with closing(open_admin(settings)) as admin:
        return emitted_to(settings, admin).get(0, 0) >= end


def test_note_of_somebody_else_is_none() -> None:
    """What other tools write beside an offset is not taken for a place."""
    note = OffsetNote(7, 3, -(2**63))
    assert read_note(note.text()) == note
    for text in (None, "", "moved by hand", "[]", "3", '{"emitted_to": 7}'):
        assert read_note(text) is None
    assert read_note('{"emitted_to": "7", "state": 3, "watermark_us": 0}') is None


def test_time_that_the_broker_never_takes_ends_the_processor(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """A time over the broker's maximum is an error of settings, not a broker that is away."""
    settings = topic_settings(
        kafka_broker.bootstrap, topic_prefix, kafka__transaction_timeout=700.0
    )
    make_topics(settings)
    with (
        joined_group(
            settings,
            WindowFinisher(),
            metrics=SelfMetrics(),
            clock=SystemClock(),
            log=print,
            config=CONFIG,
        ) as pipeline,
        pytest.raises(SettingsError, match=r"kafka\.transaction_timeout = 700") as caught,
    ):
        pipeline.run(until_idle=True)
    assert caught.value.exit_code == 2
