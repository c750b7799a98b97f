"""The owner's letters wait for their topic without disturbing anybody, and none is left out."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from support.kafka_settings import committed_records, kafka_settings, make_topics
from support.outbox_store import open_store

from moescope.console.kafka.letter_position import NOTHING, PositionFile, Published
from moescope.console.kafka.letter_publisher import DeadLetterTopic, publishing_dead_letters
from moescope.core.kafka import BrokerUnreachableError
from moescope.storage.control import insert_rows

if TYPE_CHECKING:
    from pathlib import Path

    from support.broker_choice import SharedBroker

    from moescope.core.settings import Settings
    from moescope.storage import Store


def _add(store: Store, partition: str, *offsets: int) -> None:
    rows = [
        {
            "partition": partition,
            "log_offset": offset,
            "reason": "malformed",
            "detail": "",
            "payload": b"x",
        }
        for offset in offsets
    ]
    store.change(
        lambda connection, commit_id: insert_rows(connection, "dead_letters", rows, commit_id),
        author="test",
        action="add",
        audit=False,
    )


def _keys(settings: Settings) -> list[str]:
    records = committed_records(settings, f"{settings['kafka.topic_prefix']}.dlq")
    return [each.key.decode() for each in records]


def test_letters_of_the_routing_topic_are_published_in_the_order_of_commits(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Later commits follow, whatever their partitions; letters of imports are not the topic's."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix, data__directory=str(tmp_path))
    make_topics(settings)
    one, two = f"{topic_prefix}.routing-1", f"{topic_prefix}.routing-0"
    with open_store(tmp_path / "store.duckdb") as store:
        topic = DeadLetterTopic(store, settings, lambda _: None)
        _add(store, one, 5, 3)
        assert topic.publish() == 2
        _add(store, "import-1", 1)
        _add(store, two, 1)
        assert topic.publish() == 1
    assert _keys(settings) == [f"{one}:3", f"{one}:5", f"{two}:1"]


def test_note_of_an_older_store_leaves_nothing_out(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """A store that was made anew publishes from its beginning, though the note is further on."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix, data__directory=str(tmp_path))
    make_topics(settings)
    PositionFile(tmp_path, f"{topic_prefix}.dlq").write(Published(900, "p", 1))
    with open_store(tmp_path / "store.duckdb") as store:
        _add(store, f"{topic_prefix}.routing-0", 1)
        assert DeadLetterTopic(store, settings, lambda _: None).publish() == 1


@pytest.mark.parametrize("content", ["", "[]", '{"topic": 1}', '{"topic": "t", "commit_id": "x"}'])
def test_damaged_note_counts_for_nothing(tmp_path: Path, content: str) -> None:
    """What cannot be read is published once more, and is no error."""
    note = PositionFile(tmp_path, "t")
    note.write(Published(1, "p", 2))
    assert note.read() == Published(1, "p", 2)
    assert PositionFile(tmp_path, "other").read() == NOTHING
    (path,) = tmp_path.iterdir()
    path.write_text(content)
    assert note.read() == NOTHING


def test_absent_broker_holds_nobody_up_and_is_told_once(tmp_path: Path) -> None:
    """The thread waits and ends when it is told to; publishing by hand says what is wrong."""
    settings = kafka_settings(
        "127.0.0.1:1", "absent", data__directory=str(tmp_path), kafka__connect_timeout=0.5
    )
    told: list[str] = []
    heard = threading.Event()

    def log(text: str) -> None:
        told.append(text)
        heard.set()

    with open_store(tmp_path / "store.duckdb") as store:
        _add(store, "absent.routing-0", 1)
        with pytest.raises(BrokerUnreachableError):
            DeadLetterTopic(store, settings, log).publish()
        with publishing_dead_letters(store, settings, log):
            assert heard.wait(20)
    assert len(told) == 1
    assert "wait" in told[0]


def test_nothing_is_published_where_processors_do_it(tmp_path: Path) -> None:
    """With deltas the letters are in the topic already; without Kafka there is no topic."""
    for settings in (
        kafka_settings("127.0.0.1:1", "absent", store__source="deltas"),
        kafka_settings("", "absent"),
    ):
        with open_store(tmp_path / "store.duckdb") as store:
            threads = threading.active_count()
            with publishing_dead_letters(store, settings, print):
                assert threading.active_count() == threads
