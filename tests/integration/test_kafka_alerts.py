"""Alerts in a topic: at least once through the outbox, whatever the broker does."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest
from support.kafka_settings import committed_records, kafka_settings, make_topics
from support.outbox_store import add, clock_at, open_store, outbox

from moescope.core.settings import load_settings
from moescope.jobs.notifications import (
    Deliverer,
    DeliveryError,
    KafkaReceiver,
    LogReceiver,
    Receiver,
    receiver_names,
    receivers_from,
    send_test,
)

if TYPE_CHECKING:
    from pathlib import Path

    from support.broker_choice import Broker, SharedBroker

    from moescope.core.settings import Settings

HEADER = "idempotency-key"


def _in_topic(settings: Settings) -> list[tuple[bytes, dict[str, str], list[tuple[str, bytes]]]]:
    topic = f"{settings['kafka.topic_prefix']}.alerts"
    return [
        (each.key, json.loads(each.value), each.headers)
        for each in committed_records(settings, topic)
    ]


def test_alerts_reach_the_topic_in_order_with_key_and_header(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Each notification is one record: keyed by its alert, recognisable when it comes twice."""
    settings = kafka_settings(kafka_broker.bootstrap, topic_prefix)
    make_topics(settings)
    bodies = [
        {"alert": "a", "state": "firing", "notification": "a-1-kafka"},
        {"alert": "a", "state": "resolved", "notification": "a-2-kafka"},
    ]
    receiver = KafkaReceiver(settings)
    for body in bodies:
        receiver.send(body["notification"], json.dumps(body))
    assert _in_topic(settings) == [
        (b"a", body, [(HEADER, body["notification"].encode())]) for body in bodies
    ]
    with open_store(tmp_path / "store.duckdb") as store:
        (result,) = send_test(store, [receiver], clock_at(0))
    assert (result.receiver, result.error) == ("kafka", "")
    key, body, headers = _in_topic(settings)[2]
    assert body["kind"] == "test"
    assert key.decode() == body["notification"] == dict(headers)[HEADER].decode()


def test_an_alert_waits_for_its_broker_and_others_do_not(
    own_broker: Broker, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the broker is frozen or gone the outbox keeps the alert; the log gets its own."""
    settings = kafka_settings(own_broker.bootstrap, topic_prefix)
    make_topics(settings)
    receivers: list[Receiver] = [LogReceiver(), KafkaReceiver(settings)]
    own_broker.pause()
    with open_store(tmp_path / "store.duckdb") as store:
        add(store, "a-1-kafka", receiver="kafka")
        add(store, "a-1-log", receiver="log")
        threads = threading.active_count()
        with monkeypatch.context() as impatient:
            impatient.setattr("moescope.jobs.notifications.kafka_topic.TIMEOUT_MS", 500)
            assert Deliverer(store, receivers, clock_at(0)).deliver_once() == (1, 1, 0)
            own_broker.kill()
            assert Deliverer(store, receivers, clock_at(6)).deliver_once() == (0, 1, 0)
        assert threading.active_count() == threads
        (waiting,) = (row for row in outbox(store) if row["receiver"] == "kafka")
        assert "No Kafka broker answered" in waiting["last_error"]
        assert Deliverer(store, receivers, clock_at(7)).deliver_once() == (0, 0, 0)
        own_broker.start()
        assert Deliverer(store, receivers, clock_at(17)).deliver_once() == (1, 0, 0)
    assert [body["key"] for _, body, _ in _in_topic(settings)] == ["a-1-kafka"]


def test_missing_topic_is_a_failure_that_says_what_to_do(
    kafka_broker: SharedBroker, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody makes the alerts topic by sending to it."""
    monkeypatch.setattr("moescope.jobs.notifications.kafka_topic.TIMEOUT_MS", 500)
    receiver = KafkaReceiver(kafka_settings(kafka_broker.bootstrap, topic_prefix))
    with pytest.raises(DeliveryError) as failed:
        receiver.send("a-1-kafka", "{}")
    assert f"{topic_prefix}.alerts" in str(failed.value.why)


def test_topic_is_a_receiver_where_there_is_kafka_and_it_is_wanted() -> None:
    """Brokers add the topic to the receivers; `alerts.kafka = false` takes it away."""
    brokers = {"MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092"}
    for environment, expected in (
        ({}, ("log",)),
        (brokers, ("log", "kafka")),
        ({**brokers, "MOESCOPE_ALERTS_WEBHOOK_URL": "http://h/"}, ("log", "webhook", "kafka")),
        ({**brokers, "MOESCOPE_ALERTS_KAFKA": "false"}, ("log",)),
    ):
        settings = load_settings(environment=environment)
        assert receiver_names(settings) == expected
        assert tuple(each.name for each in receivers_from(settings, clock_at(0))) == expected
