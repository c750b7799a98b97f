"""The owner applies what processors committed to the deltas topic: all of it, and once."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from kafka import TopicPartition
from support.deltas_topic import apply_deltas, send_emissions, send_records, transactions
from support.kafka_settings import kafka_settings, make_topics
from support.shared_rows import (
    BASE,
    SECOND,
    SHAPES,
    Record,
    Row,
    RowProcessor,
    make_records,
    share_finisher,
)

from moescope.core.emission_records import EmissionRecord, emission_records
from moescope.core.kafka import open_admin
from moescope.core.self_metrics import SelfMetrics
from moescope.storage import Store
from moescope.storage.deltas import DeltasRewoundError, ProcessorsDivergedError
from moescope.storage.deltas.merging import merged

if TYPE_CHECKING:
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.core.emission import Emission
    from moescope.core.settings import Settings

TABLES = ("windows", "metric_histograms", "batches", "offsets", "producers")


@pytest.fixture
def settings(kafka_broker: SharedBroker, topic_prefix: str) -> Settings:
    """Of this test's topics, which exist."""
    found = kafka_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(found)
    return found


def open_store(path: Path) -> Store:
    """A store for the windows of rows."""
    return Store(path, share_finisher, SHAPES)


def contents(store: Store) -> dict[str, list[Any]]:
    """Rows of all tables that emissions write, without the numbers of transactions."""
    found = {}
    with store.cursor() as cursor:
        for table in TABLES:
            rows = cursor.table(table).fetchall()
            # The last column is the number of the transaction.
            found[table] = sorted(repr(row[:-1]) for row in rows)
    return found


def emissions_of(*partitions: str, commits: int = 6) -> list[Emission]:
    """Commits of several partitions in turns."""
    streams = []
    for name in partitions:
        processor = RowProcessor(name)
        # All at one pace: none is ever set aside.
        records = make_records(3, 3 * commits, longest_us=2 * SECOND)
        streams.append(
            [processor.emission(records[at : at + 3]) for at in range(0, len(records), 3)]
        )
    return [emission for turn in zip(*streams, strict=True) for emission in turn]


def test_the_topic_gives_the_same_tables(tmp_path: Path, settings: Settings) -> None:
    """Emissions of two senders through the topic, merged, are as good as applied directly."""
    routing = f"{settings['kafka.topic_prefix']}.routing"
    emissions = emissions_of(f"{routing}-0", f"{routing}-1", commits=4)
    for number, emission in enumerate(emissions):
        send_emissions(settings, f"s{number % 2}", [emission])
    metrics = SelfMetrics()
    with open_store(tmp_path / "a.duckdb") as direct, open_store(tmp_path / "b.duckdb") as store:
        direct.apply(merged(emissions[:2], {}, frozenset()))
        for emission in emissions[2:]:
            direct.apply(emission)
        assert apply_deltas(settings, store, metrics) == []
        assert contents(store) == contents(direct)
    assert metrics.value("moescope_store_emissions_total") == len(emissions)


def test_a_restart_goes_on_at_the_stored_place(tmp_path: Path, settings: Settings) -> None:
    """Nothing is applied twice, and what came meanwhile is not missed."""
    emissions = emissions_of("p-0", commits=8)
    with open_store(tmp_path / "a.duckdb") as direct:
        for emission in emissions:
            direct.apply(emission)
        expected = contents(direct)
    metrics = SelfMetrics()
    for part in (emissions[:3], emissions[3:5], (), emissions[5:]):
        send_emissions(settings, f"s{len(part)}", part)
        with open_store(tmp_path / "b.duckdb") as store:
            apply_deltas(settings, store, metrics)
    with open_store(tmp_path / "b.duckdb") as store:
        assert contents(store) == expected
    assert metrics.value("moescope_store_refused_emissions_total") == 0


def test_what_a_processor_did_not_commit_is_not_applied(tmp_path: Path, settings: Settings) -> None:
    """Records of an aborted transaction, and half an emission, leave no trace."""
    first, second, third = emissions_of("p-0", commits=3)
    with transactions(settings, "a") as producer:
        producer.begin_transaction()
        send_records(settings, producer, emission_records(second, "a", 1))
        producer.abort_transaction()
        producer.begin_transaction()
        send_records(settings, producer, emission_records(second, "a", 2)[:-1])
        producer.commit_transaction()
    send_emissions(settings, "b", [first])
    with open_store(tmp_path / "s.duckdb") as store:
        apply_deltas(settings, store)
        assert store.load_progress()["p-0"].emitted_to == 3
        with transactions(settings, "a") as producer:
            producer.begin_transaction()
            send_records(settings, producer, emission_records(second, "a", 2)[-1:])
            producer.commit_transaction()
        # A new reader begins where the unfinished emission began.
        apply_deltas(settings, store)
        assert store.load_progress()["p-0"].emitted_to == 6
        send_emissions(settings, "a", [third])
        apply_deltas(settings, store)
        assert store.load_progress()["p-0"].emitted_to == 9


def test_repeated_emissions_are_left_out_and_straddling_ones_stop(
    tmp_path: Path, settings: Settings
) -> None:
    """Offsets that were set back by hand add nothing twice, however commits are cut then."""
    records = make_records(1, 9, longest_us=SECOND)
    original, again = RowProcessor("p-0"), RowProcessor("p-0")
    metrics = SelfMetrics()
    with open_store(tmp_path / "s.duckdb") as store:
        send_emissions(settings, "a", [original.emission(records[:5])])
        apply_deltas(settings, store)
        before = contents(store)
        send_emissions(settings, "b", [again.emission(records[:2]), again.emission(records[2:5])])
        (told,) = apply_deltas(settings, store, metrics)
        assert "left out" in told
        assert metrics.value("moescope_store_refused_emissions_total") == 2
        assert contents(store) == before
        rest = RowProcessor("p-0")
        rest.emission(records[:4])
        send_emissions(settings, "c", [rest.emission(records[4:7])])
        for _ in range(2):
            with pytest.raises(ProcessorsDivergedError, match="--reset-processors"):
                apply_deltas(settings, store)
        assert contents(store) == before


def test_foreign_records_and_gaps_are_seen_and_passed(tmp_path: Path, settings: Settings) -> None:
    """Junk is kept as a dead letter; what retention removed is counted, with marks of transactions.

    Three records were committed, and one was not; nobody can tell afterwards.
    """
    topic = f"{settings['kafka.topic_prefix']}.deltas"
    first, second = emissions_of("p-0", commits=2)
    metrics = SelfMetrics()
    with open_store(tmp_path / "s.duckdb") as store:
        with transactions(settings, "x") as producer:
            producer.begin_transaction()
            send_records(settings, producer, [EmissionRecord(b"k", b"junk", [])])
            producer.commit_transaction()
        send_emissions(settings, "a", [first])
        apply_deltas(settings, store, metrics)
        read_to = store.read_to()[f"{topic}-0"]
        with transactions(settings, "x") as producer:
            producer.begin_transaction()
            send_records(settings, producer, [EmissionRecord(b"k", b"lost", [])] * 3)
            producer.commit_transaction()
            producer.begin_transaction()
            send_records(settings, producer, [EmissionRecord(b"k", b"never", [])])
            producer.abort_transaction()
        with closing(open_admin(settings)) as admin:
            admin.delete_records({TopicPartition(topic, 0): read_to + 6})
        send_emissions(settings, "b", [second])
        apply_deltas(settings, store, metrics)
        assert store.load_progress()["p-0"].emitted_to == 6
        with store.cursor() as cursor:
            counts = cursor.execute(
                "SELECT reason, records, kept FROM dead_letter_counts ORDER BY 1"
            ).fetchall()
            letters = cursor.execute(
                "SELECT reason, payload, log_offset FROM dead_letters ORDER BY 1"
            ).fetchall()
            details = cursor.execute(
                "SELECT detail FROM dead_letters WHERE reason = 'deltas_gap'"
            ).fetchall()
    assert [detail.startswith("up to 6 records") for (detail,) in details] == [True]
    assert counts == [("damaged_emission", 1, 1), ("deltas_gap", 6, 1)]
    assert letters == [("damaged_emission", b"junk", 0), ("deltas_gap", b"", read_to)]
    assert metrics.value("moescope_store_gap_emissions_total") == 6


def test_a_topic_that_was_made_anew_is_an_error(tmp_path: Path, settings: Settings) -> None:
    """Its records would be taken for others: the owner says so and applies nothing."""
    topic = f"{settings['kafka.topic_prefix']}.deltas-0"
    processor = RowProcessor("p-0")
    with open_store(tmp_path / "s.duckdb") as store:
        emission = processor.emission([Record((Row(BASE, "q", "t", (1, 2)),), BASE)])
        store.apply(replace(emission, read_to={topic: 1000}))
        with pytest.raises(DeltasRewoundError, match="made anew"):
            apply_deltas(settings, store)
