"""Streams as records of a real routing topic, and the same streams in the batch log."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from support.small_windows import CONFIG, open_store
from support.streams import START_US, Cut, Item, Plan, cut_stream, encode, make_stream

from moescope.core.batchlog import BatchLogWriter
from moescope.core.clock import ManualClock
from moescope.core.kafka import Topic, declared_topics, open_admin, open_producer, topic_name
from moescope.core.kafka.places import partition_name
from moescope.core.kafka.record_times import times_header
from moescope.core.settings import Settings, load_settings
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.batch_log import BatchLogSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from oracles.windows_plain import Record

Streams = dict[int, list["Record"]]
LAST_SILENCE_US = 660 * 1_000_000
"""After so much event time everything has closed but step windows."""
BEAT_US = 9_000_000
"""A node that is silent for longer than 10 s is set aside, and coverage says so."""


def topic_settings(bootstrap: str, prefix: str, **options: object) -> Settings:
    """Settings for topics of one test, with short time-outs."""
    return load_settings(
        None,
        options={
            "kafka.bootstrap_servers": bootstrap,
            "kafka.topic_prefix": prefix,
            "kafka.group": prefix,
            "kafka.partitions": 3,
            "kafka.session_timeout": 2.0,
            "kafka.max_poll_interval": 30.0,
            "kafka.transaction_timeout": 3.0,
            **{name.replace("__", "."): value for name, value in options.items()},
        },
    )


def make_topics(settings: Settings) -> None:
    """Make all topics; records of routing keep the times that the producer gives them."""
    from kafka.admin import NewTopic  # noqa: PLC0415 (a quarter of a second)

    with closing(open_admin(settings)) as admin:
        admin.create_topics(
            [
                NewTopic(
                    spec.name,
                    num_partitions=spec.partitions,
                    replication_factor=1,
                    topic_configs={
                        **spec.configs,
                        **(
                            {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
                            if spec.topic is Topic.ROUTING
                            else {}
                        ),
                    },
                )
                for spec in declared_topics(settings)
            ]
        )


def make_streams(seed: int, partitions: Iterable[int], passes: int = 30) -> Streams:
    """Streams of a few nodes per partition that are silent for a while at the end."""
    items = {
        number: make_stream(
            Plan(
                seed=seed * 7 + number, nodes=2, passes=passes, training=number == 1,
                site=f"p{number}-", long_gaps=False, heartbeat_s=3.0,
            )
        )
        for number in partitions
    }  # fmt: skip
    end = max((each[-1].time for each in items.values() if each), default=START_US)
    for each in items.values():
        lanes = {item.node: item.lane for item in each}
        last = each[-1].time if each else end
        for time_us in range(last, end + LAST_SILENCE_US, BEAT_US):
            each += [Item(node, lane, time_us) for node, lane in lanes.items()]
    return {number: cut_stream(each, Cut(7, 300_000, repeat=9)) for number, each in items.items()}


def send(settings: Settings, streams: Mapping[int, Sequence[Record]]) -> None:
    """Send records to the partitions, stamped with the times at which they were logged."""
    with closing(open_producer(settings)) as producer:
        sent = [
            producer.send(
                topic_name(settings, Topic.ROUTING),
                encode(record),
                key=record.node.encode(),
                partition=number,
                timestamp_ms=record.appended // 1_000,
                headers=[times_header(record.appended, record.appended // 1_000 * 1_000)],
            )
            for number, records in streams.items()
            for record in records
        ]
        for each in sent:
            each.get(timeout=90)


def roll_up_embedded(
    folder: Path, settings: Settings, streams: Mapping[int, Sequence[Record]]
) -> Path:
    """Roll the same records up from batch logs, in one commit; gives the store's file."""
    clock = ManualClock(START_US)
    for number, records in streams.items():
        name = partition_name(topic_name(settings, Topic.ROUTING), number)
        clock.set_us(START_US)
        with BatchLogWriter(folder / "log", name, domain="live", clock=clock) as writer:
            for record in records:
                clock.set_us(record.appended)
                writer.append(encode(record))
    file = folder / "embedded.duckdb"
    with BatchLogSource(folder / "log") as source, open_store(file) as store:
        Pipeline(
            source, store, WindowFinisher(), CONFIG, commit_interval=60.0, commit_records=10**6
        ).run(until_idle=True)
    return file
