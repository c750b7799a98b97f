"""Emissions that nobody should have written: set aside, counted and told, while others go on."""

from __future__ import annotations

import json
import struct
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from kafka import TopicPartition
from support.deltas_topic import apply_deltas, send_emissions, send_records, transactions
from support.kafka_settings import kafka_settings, make_topics
from support.shared_rows import SECOND, SHAPES, RowProcessor, make_records, share_finisher

from moescope.console.handing_over import hand_over
from moescope.core.clock import ManualClock, SystemClock
from moescope.core.emission_records import EMISSION_KINDS, EmissionRecord, emission_records
from moescope.core.errors import InternalError
from moescope.core.kafka import open_admin
from moescope.core.plain_codec import PlainVersionError, unpack
from moescope.core.self_metrics import SelfMetrics
from moescope.storage import Store
from moescope.storage.deltas.reader import MOST_IN_A_ROW
from moescope.storage.deltas.set_aside import SetAside

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.core.emission import Emission
    from moescope.core.settings import Settings

TOO_MUCH = (1 << 64) - 1
"""More than the column of a count of rows holds."""


@pytest.fixture
def settings(kafka_broker: SharedBroker, topic_prefix: str) -> Settings:
    """Of this test's topics, which exist; few records are kept whole."""
    found = kafka_settings(kafka_broker.bootstrap, topic_prefix, dead_letters__kept_per_minute=3)
    make_topics(found)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store, closed in the end."""
    with Store(tmp_path / "s.duckdb", share_finisher, SHAPES) as opened:
        yield opened


def emissions_of(settings: Settings, number: int, commits: int) -> list[Emission]:
    """Commits of one partition of the routing topic."""
    processor = RowProcessor(f"{settings['kafka.topic_prefix']}.routing-{number}")
    records = make_records(number, 2 * commits, longest_us=SECOND)
    return [processor.emission(records[at : at + 2]) for at in range(0, len(records), 2)]


def emitted_to(store: Store) -> list[int]:
    """Of every partition, in the order of their names."""
    return [each.emitted_to for _, each in sorted(store.load_progress().items())]


def set_aside(store: Store) -> tuple[list[Any], list[Any]]:
    """Counts per reason, and the letters kept."""
    with store.cursor() as cursor:
        counts = cursor.execute(
            "SELECT reason, records, kept, record_bytes FROM dead_letter_counts"
        ).fetchall()
        letters = cursor.execute("SELECT detail, payload FROM dead_letters ORDER BY log_offset")
        return counts, letters.fetchall()


def test_emissions_that_contradict_themselves_are_set_aside(
    settings: Settings, store: Store
) -> None:
    """Wrong types inside, or output that belongs to no record, never stop the owner."""
    metrics = SelfMetrics()
    good = emissions_of(settings, 0, 2)
    (progress,) = good[1].progress
    no_numbers: dict[str, Any] = {"emitted_to": "a", "watermark_us": None}
    no_sum: dict[str, Any] = {"seen": "many"}
    wrong = [
        replace(good[1], progress=(replace(progress, **no_numbers),)),
        replace(good[1], deltas=(replace(good[1].deltas[0], **no_sum),)),
        replace(good[1], progress=(), batches=()),
    ]
    send_emissions(settings, "a", [good[0], *wrong, good[1]])
    told = apply_deltas(settings, store, metrics)
    assert emitted_to(store) == [4]
    counts, letters = set_aside(store)
    assert counts[0][:3] == ("damaged_emission", 3, 3)
    assert ["emitted_to" in letters[0][0], "seen" in letters[1][0]] == [True, True]
    assert "no progress" in letters[2][0]
    assert len([each for each in told if "set aside" in each]) == 1
    assert metrics.value("moescope_store_emissions_total") == 2


def test_a_storm_of_garbage_is_counted_and_hardly_kept(settings: Settings, store: Store) -> None:
    """Each record is counted; so many a minute are kept, and one line is told."""
    junk = [EmissionRecord(b"k", f"junk {number:3}".encode(), []) for number in range(150)]
    metrics = SelfMetrics()
    good = emissions_of(settings, 0, 1)
    with transactions(settings, "x") as producer:
        producer.begin_transaction()
        send_records(settings, producer, junk)
        producer.commit_transaction()
    send_emissions(settings, "a", good)
    told = apply_deltas(settings, store, metrics)
    ((reason, records, kept, record_bytes),), letters = set_aside(store)
    assert (reason, records, record_bytes) == ("damaged_emission", 150, 150 * 8)
    # They may have been sent as a minute ended.
    assert kept == len(letters) in {3, 4, 5, 6}
    assert len([each for each in told if "set aside" in each]) == 1
    assert metrics.value("moescope_store_emissions_total") == 1
    assert emitted_to(store) == [2]


def test_what_is_damaged_is_counted_once_however_often_the_owner_starts(
    settings: Settings, store: Store
) -> None:
    """Behind an unfinished emission, from where reading begins again: records, and emissions."""
    begun, *rest = emissions_of(settings, 0, 3)
    other = emissions_of(settings, 1, 3)
    parts = emission_records(begun, "a", 1)
    with transactions(settings, "x") as producer:
        producer.begin_transaction()
        send_records(settings, producer, parts[:-1])
        send_records(settings, producer, [EmissionRecord(b"k", b"junk", [])])
        producer.commit_transaction()
    send_emissions(settings, "b", [other[0], unfit(other[1])])
    apply_deltas(settings, store)
    counted = set_aside(store)
    assert counted[0] == [("damaged_emission", 2, 2, counted[0][0][3])]
    assert apply_deltas(settings, store) == []
    send_emissions(settings, "c", other[1:])
    with transactions(settings, "x") as producer:
        producer.begin_transaction()
        send_records(settings, producer, parts[-1:])
        producer.commit_transaction()
    send_emissions(settings, "d", [unfit(rest[0])])
    for _ in range(2):
        apply_deltas(settings, store)
    assert emitted_to(store) == [2, 6]
    assert [each[:3] for each in set_aside(store)[0]] == [("damaged_emission", 3, 3)]


def test_records_that_are_gone_were_handled_before(settings: Settings, store: Store) -> None:
    """An emission that never ends holds the place, but what retention takes there is no loss."""
    begun, *_ = emissions_of(settings, 0, 1)
    with transactions(settings, "x") as producer:
        producer.begin_transaction()
        send_records(settings, producer, emission_records(begun, "a", 1)[:-1])
        producer.commit_transaction()
    send_emissions(settings, "b", emissions_of(settings, 1, 2))
    apply_deltas(settings, store)
    place = TopicPartition(f"{settings['kafka.topic_prefix']}.deltas", 0)
    with closing(open_admin(settings)) as admin:
        admin.delete_records({place: -1})
    metrics = SelfMetrics()
    send_emissions(settings, "c", emissions_of(settings, 1, 3)[2:])
    assert apply_deltas(settings, store, metrics) == []
    assert emitted_to(store) == [6]
    assert set_aside(store) == ([], [])
    assert metrics.value("moescope_store_gap_emissions_total") == 0


def test_people_are_told_once_a_minute_of_how_many_more() -> None:
    """The first one at once, and none is left untold when the storm is over."""
    told: list[str] = []
    clock = ManualClock()
    aside = SetAside("d-0", 2, clock, told.append)
    for offset in range(10):
        aside.put(offset, 0, "Junk.", b"")
    aside.tell()
    assert len(told) == 1
    clock.sleep(61)
    aside.tell()
    aside.tell()
    assert told[1:] == ["9 more records of d-0 were set aside"]
    letters = aside.before(10).dead_letters
    aside.forget_before(10)
    assert [each.offset for each in letters] == [0, 1]
    assert not aside
    aside.put(10, 61_000_000, "Junk.", b"")
    assert [each.offset for each in aside.before(11).dead_letters] == [10]


def unfit(emission: Emission) -> Emission:
    """The emission with a number that no table holds."""
    return replace(emission, batches=(replace(emission.batches[0], rows=TOO_MUCH),))


def test_an_emission_that_the_store_cannot_work_with_is_set_aside(
    settings: Settings, store: Store
) -> None:
    """It is kept whole; those beside it in the same transaction are applied."""
    metrics = SelfMetrics()
    first, second = emissions_of(settings, 0, 3), emissions_of(settings, 1, 1)
    bad = unfit(first[1])
    send_emissions(settings, "a", [first[0], bad, *second, first[2]])
    told = apply_deltas(settings, store, metrics)
    assert emitted_to(store) == [6, 2]
    counts, ((detail, payload),) = set_aside(store)
    assert counts[0][:3] == ("damaged_emission", 1, 1)
    assert "cannot be applied" in detail
    assert unpack(payload, EMISSION_KINDS).batches == bad.batches
    assert any("cannot be applied" in each for each in told)
    assert metrics.value("moescope_store_emissions_total") == 3
    assert apply_deltas(settings, store) == []


def test_a_store_that_can_apply_nothing_stops(settings: Settings, store: Store) -> None:
    """A fault of its own must not throw away everything that comes."""
    send_emissions(settings, "a", [unfit(each) for each in emissions_of(settings, 0, 20)])
    with pytest.raises(InternalError, match="in a row"):
        apply_deltas(settings, store)
    assert store.read_to() == {}
    assert MOST_IN_A_ROW < 20


def test_a_record_of_no_known_version_can_be_stepped_over(settings: Settings, store: Store) -> None:
    """It stops the owner, who says where it is; a reset of the processors gets past it."""
    data = struct.pack("<4sBQI", b"MSPV", 2, 1, 1) + zstandard.compress(b"1")
    header = json.dumps(["emission", "x", 1, 0, 1]).encode()
    send_emissions(settings, "a", emissions_of(settings, 0, 1))
    with transactions(settings, "x") as producer:
        producer.begin_transaction()
        send_records(settings, producer, [EmissionRecord(b"x", data, [("moescope-part", header)])])
        producer.commit_transaction()
    topic = f"{settings['kafka.topic_prefix']}.deltas-0"
    for _ in range(2):
        with pytest.raises(PlainVersionError, match=f"Record \\d+ of {topic}") as raised:
            apply_deltas(settings, store)
        assert "--reset-processors" in raised.value.next_step
    hand_over(settings, store, SystemClock())
    assert store.handled_to() == store.read_to()
    assert apply_deltas(settings, store) == []
    send_emissions(settings, "b", emissions_of(settings, 0, 1))
    apply_deltas(settings, store)
    assert emitted_to(store) == [2]
