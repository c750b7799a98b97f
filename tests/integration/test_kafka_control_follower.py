"""A processor judges by the thresholds that the control topic holds, and by those that follow."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from support.fleet_processes import wait_for
from support.kafka_settings import kafka_settings, make_topics
from support.shared_rows import LANE
from support.threshold_versions import small_version

from moescope.core.control_records import ACTIVATIONS_KEY, control_changes, control_records
from moescope.core.kafka import BrokerUnreachableError, Topic, open_producer, topic_name
from moescope.core.thresholds import Activation, ThresholdBook
from moescope.processors.control import ControlFollower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.broker_choice import SharedBroker

    from moescope.core.settings import Settings

PATIENCE_S = 90.0


def publish(
    settings: Settings, before: Mapping[bytes, bytes], wanted: Mapping[bytes, bytes]
) -> None:
    """Write what differs to the topic, as the owner does."""
    with closing(open_producer(settings)) as producer:
        for key, value in control_changes(before, wanted):
            producer.send(topic_name(settings, Topic.CONTROL), value, key).get(timeout=PATIENCE_S)


def test_book_holds_what_was_published_and_what_follows(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """Read from the beginning before anything is judged; later versions replace earlier ones."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix)
    said: list[str] = []
    make_topics(settings)
    versions = {name: small_version(name, LANE) for name in ("t-1", "t-2")}
    scope = versions["t-1"].scope
    first = control_records(versions, {scope: (Activation(100, "t-1"),)})
    second = control_records(versions, {scope: (Activation(100, "t-1"), Activation(200, "t-2"))})
    publish(settings, {}, first)
    book = ThresholdBook()
    with ControlFollower(settings, book, said.append) as follower:
        assert follower.wait_until_read(threading.Event())
        found = book.at(LANE, 150)
        assert found is not None
        assert found.version == "t-1"
        assert book.at(LANE, 99) is None
        publish(settings, {}, {ACTIVATIONS_KEY: b"damaged"})
        publish(settings, first, second)
        wait_for("the second version", lambda: _version(book, 250) == "t-2", PATIENCE_S)
        assert _version(book, 150) == "t-1"
        assert follower.failure is None
    assert ["passed over" in line for line in said] == [True], said


def test_empty_topic_means_that_nothing_is_judged(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """Nothing published is an answer, too: the book is empty and the processor begins."""
    settings, book = kafka_settings(kafka_broker.bootstrap, topic_prefix), ThresholdBook()
    make_topics(settings)
    with ControlFollower(settings, book, print) as follower:
        assert follower.wait_until_read(threading.Event())
    assert book.at(LANE, 100) is None


def test_missing_broker_is_an_error_or_waited_for(topic_prefix: str) -> None:
    """Who waits is stopped by the event; who does not is told."""
    settings = kafka_settings("127.0.0.1:9", topic_prefix, kafka__connect_timeout=0.5)
    stopped = threading.Event()
    with (
        ControlFollower(settings, ThresholdBook(), print, patient=False) as follower,
        pytest.raises(BrokerUnreachableError),
    ):
        follower.wait_until_read(stopped)
    with ControlFollower(settings, ThresholdBook(), print) as follower:
        threading.Timer(0.3, stopped.set).start()
        assert not follower.wait_until_read(stopped)


def _version(book: ThresholdBook, time_us: int) -> str:
    found = book.at(LANE, time_us)
    return "" if found is None else found.version
