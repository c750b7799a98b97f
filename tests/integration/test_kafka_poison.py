"""Storms of malformed records: the stream goes on, all are counted, a few kept and published."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
from support.drained_deltas import apply_deltas
from support.fleet_processes import Nursery, wait_for
from support.kafka_settings import committed_records
from support.processor_fleet import PATIENCE_S, ProcessorFleet
from support.routed_topic import (
    Streams,
    make_streams,
    make_topics,
    roll_up_embedded,
    send,
    topic_settings,
)
from support.small_windows import CONFIG, open_store
from support.stored import WINDOW_COLUMNS, stored_windows, tables
from support.streams import encode

from moescope.console.kafka.letter_publisher import DeadLetterTopic
from moescope.core.clock import SystemClock
from moescope.core.kafka.dead_letters import PublishedLetter, read_record
from moescope.core.self_metrics import SelfMetrics
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.kafka import KafkaSource

if TYPE_CHECKING:
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.core.settings import Settings

BAD = 5_000
KEPT_PER_MINUTE = 60
MINUTE_US = 60_000_000


def _poisoned(streams: Streams, number_bad: int) -> Streams:
    """The streams with as many malformed records between their own, spread over their time."""
    poisoned: Streams = {}
    for number, records in streams.items():
        left = number_bad // len(streams)
        between = left // len(records) + 1
        poisoned[number] = []
        for record in records:
            poisoned[number].append(record)
            bad = min(between, left)
            left -= bad
            poisoned[number] += [record._replace(readable=False)] * bad
        assert left == 0
    return poisoned


def _kept(streams: Streams) -> int:
    """How many are to be kept, worked out from the append times alone."""
    per_minute = Counter(
        (number, record.appended // MINUTE_US)
        for number, records in streams.items()
        for record in records
        if not record.readable
    )
    return sum(min(bad, KEPT_PER_MINUTE) for bad in per_minute.values())


def test_stream_goes_on_through_a_storm_of_malformed_records(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """5,000 bad records change no window; the ledger is exact, and the same without Kafka."""
    settings = topic_settings(
        kafka_broker.bootstrap, topic_prefix, data__directory=str(tmp_path / "data")
    )
    make_topics(settings)
    clean = make_streams(5, (0, 1))
    streams = _poisoned(clean, BAD)
    send(settings, streams)
    file = tmp_path / "store.duckdb"
    source = KafkaSource(settings, SelfMetrics(), SystemClock(), patient=False)
    with source, open_store(file) as store:
        Pipeline(source, store, WindowFinisher(), CONFIG, commit_records=500).run(until_idle=True)
    _check_ledger(file, streams)
    (tmp_path / "poisoned").mkdir()
    embedded, found = (
        tables(roll_up_embedded(tmp_path / "poisoned", settings, streams)),
        tables(file),
    )
    for name in ("dead_letters", "dead_letter_counts", "batches"):
        assert embedded[name] == found[name]
    (tmp_path / "clean").mkdir()
    undisturbed = roll_up_embedded(tmp_path / "clean", settings, clean)
    assert _counted(undisturbed) == _counted(file)
    _check_published(settings, file, _kept(streams))


def test_letters_of_a_group_are_published_once_though_a_processor_is_killed(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Killed in the middle of a commit among malformed records: ledger and topic stay exact."""
    settings = topic_settings(
        kafka_broker.bootstrap,
        topic_prefix,
        data__directory=str(tmp_path / "data"),
        processor__commit_records=64,
        processor__commit_interval=0.2,
    )
    make_topics(settings)
    streams = _poisoned(make_streams(5, (0, 1)), 800)
    send(settings, streams)
    with Nursery(tmp_path / "logs") as nursery:
        fleet = ProcessorFleet(settings, nursery)
        doomed = fleet.start(dies_in_commit=3)
        wait_for("the end of a processor", lambda: not doomed.is_running, PATIENCE_S)
        processor = fleet.start()
        fleet.wait_until_processed({number: len(each) for number, each in streams.items()})
        processor.stop()
    apply_deltas(settings, tmp_path / "store.duckdb")
    _check_ledger(tmp_path / "store.duckdb", streams)
    keys = [each.key for each in _published(settings)]
    assert len(keys) == len(set(keys)) == _kept(streams)


def _check_ledger(file: Path, streams: Streams) -> None:
    """All malformed records are counted, and as many kept as are to be."""
    with duckdb.connect(str(file), read_only=True) as connection:
        ledger = connection.execute(
            "SELECT sum(records), sum(kept), sum(record_bytes) FROM dead_letter_counts"
        ).fetchone()
        kept = connection.execute("SELECT count(*) FROM dead_letters").fetchone()
    bad = [
        len(encode(record)) for each in streams.values() for record in each if not record.readable
    ]
    assert ledger == (len(bad), _kept(streams), sum(bad))
    assert kept == (_kept(streams),)


def _counted(file: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What windows count; who was late when they closed depends on where commits are."""
    complete = WINDOW_COLUMNS.index("complete") - 11
    return {
        key: (*values[:complete], *values[complete + 1 :])
        for key, values in stored_windows(file).items()
    }


def _check_published(settings: Settings, file: Path, kept: int) -> None:
    """Each letter of the table is in the topic once, and again only where the note is lost."""
    settings.data_directory.mkdir()
    with open_store(file) as store:
        topic = DeadLetterTopic(store, settings, lambda _: None)
        assert topic.publish() == kept
        assert topic.publish() == 0
        assert DeadLetterTopic(store, settings, lambda _: None).publish() == 0
    letters = _published(settings)
    assert len(letters) == len({each.key for each in letters}) == kept
    with duckdb.connect(str(file), read_only=True) as connection:
        rows = connection.execute(
            "SELECT partition || ':' || log_offset, reason, payload FROM dead_letters"
        ).fetchall()
    assert sorted(
        (each.key, each.letter.reason, each.letter.payload) for each in letters
    ) == sorted(rows)
    for note in settings.data_directory.iterdir():
        note.unlink()
    with open_store(file) as store:
        assert DeadLetterTopic(store, settings, lambda _: None).publish() == kept
    again = _published(settings)
    assert {each.key for each in again} == {each.key for each in letters}
    assert len(again) == 2 * kept


def _published(settings: Settings) -> list[PublishedLetter]:
    records = committed_records(settings, f"{settings['kafka.topic_prefix']}.dlq")
    found = [read_record(each.key, each.value, each.headers) for each in records]
    return [each for each in found if isinstance(each, PublishedLetter)]
