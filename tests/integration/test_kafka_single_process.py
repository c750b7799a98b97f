"""One process that reads the routing topic itself ends with the tables of the embedded one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.routed_topic import (
    make_streams,
    make_topics,
    roll_up_embedded,
    send,
    topic_settings,
)
from support.small_windows import CONFIG, open_store
from support.stored import expected_windows, stored_windows, tables

from moescope.core.clock import SystemClock
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.kafka import KafkaSource

if TYPE_CHECKING:
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.core.settings import Settings


def roll_up_topic(settings: Settings, store_file: Path, metrics: SelfMetrics | None = None) -> None:
    """Read the routing topic into a store, in small commits, until nothing is left."""
    source = KafkaSource(settings, metrics or SelfMetrics(), SystemClock(), patient=False)
    with source, open_store(store_file) as store:
        Pipeline(
            source, store, WindowFinisher(), CONFIG, commit_interval=60.0, commit_records=16
        ).run(until_idle=True)


def test_topic_gives_the_tables_of_the_batch_log(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Two partitions, and one without data: every table equals the embedded one's, bit for bit."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    streams = make_streams(3, (0, 1))
    send(settings, streams)
    roll_up_topic(settings, tmp_path / "store.duckdb")
    embedded = roll_up_embedded(tmp_path, settings, streams)
    assert tables(tmp_path / "store.duckdb") == tables(embedded)


def test_topic_gives_the_windows_of_the_plain_roll_up(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Token, time and task windows equal the oracle's."""
    settings = topic_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    streams = make_streams(4, (0, 1))
    send(settings, streams)
    roll_up_topic(settings, tmp_path / "store.duckdb")
    expected = expected_windows({str(n): records for n, records in streams.items()}, CONFIG)
    stored = stored_windows(tmp_path / "store.duckdb")
    kinds = {"token", "time", "task"}
    assert {key[0] for key in stored} >= kinds
    assert {key: row for key, row in stored.items() if key[0] in kinds} == {
        key: row for key, row in expected.items() if key[0] in kinds
    }
