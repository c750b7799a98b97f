"""The shipper and a real broker: everything arrives, in order, whatever happens to either."""

from __future__ import annotations

import json
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support import broker_choice
from support.kafka_broker import KafkaBroker
from support.shipping import (
    arrived,
    fill,
    first_arrivals,
    logged_payloads,
    make_topic,
    payload_of,
    shipping,
    shipping_settings,
    wait_until,
)

from moescope.core.batchlog import BatchLogReader, BatchLogWriter, cursor_offsets
from moescope.core.errors import SettingsError
from moescope.core.kafka import BrokerRefusedError, BrokerUnreachableError, TopicMissingError
from moescope.core.self_metrics import SelfMetrics
from moescope.producers.shipping import Shipper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.broker_choice import Broker, SharedBroker

    from moescope.core.settings import Settings


def drain(settings: Settings, root: Path) -> Shipper:
    """Ship what a log holds; gives the closed shipper."""
    with Shipper(settings, root, SelfMetrics()) as shipper:
        assert shipper.drain(seconds=60) == 0
    return shipper


def test_draining_waits_for_what_was_logged_a_moment_ago(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """A feed that has seen the end of its log looks again: what an agent flushes last is there."""
    settings = shipping_settings(kafka_broker.bootstrap, topic_prefix)
    make_topic(settings)
    with Shipper(settings, tmp_path, SelfMetrics()) as shipper:
        for last in range(1, 6):
            fill(tmp_path, "node-a", range(last - 1, last))
            assert shipper.drain(seconds=60) == 0
            assert cursor_offsets(tmp_path / "node-a") == {"kafka": last}
    assert [record.value for record in arrived(settings)] == logged_payloads(tmp_path, "node-a")


def test_everything_arrives_once_in_order_with_its_key(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """Readers find a node's batches on one partition, as logged, with the two times of each."""
    settings = shipping_settings(kafka_broker.bootstrap, topic_prefix)
    make_topic(settings)
    nodes = ("node-a", "knoten-ä", "node c")
    for node in nodes:
        fill(tmp_path, node, range(200))
    BatchLogWriter(tmp_path, "imported", domain="import/1").close()
    before_us = time.time_ns() // 1_000
    totals = drain(settings, tmp_path).totals
    records = arrived(settings)
    assert len(records) == 600
    for node in nodes:
        mine = [record for record in records if record.key == node]
        assert [record.value for record in mine] == logged_payloads(tmp_path, node)
        assert len({record.partition for record in mine}) == 1
        with BatchLogReader(tmp_path, node) as reader:
            logged_at = [record.append_time_us for record in reader.read(0).records]
            assert cursor_offsets(reader.path) == {"kafka": 200}
        times = [struct.unpack("<qq", dict(record.headers)["moescope-times"]) for record in mine]
        assert [logged for logged, _ in times] == logged_at
        assert all(before_us <= sent <= time.time_ns() // 1_000 for _, sent in times)
    with BatchLogReader(tmp_path, "imported") as reader:
        assert cursor_offsets(reader.path) == {}
    assert (totals.shipped_batches, totals.delivery_failures) == (600, 0)
    assert totals.shipped_bytes == 600 * 300


def test_a_second_start_ships_only_what_is_new(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """A clean restart costs no duplicate."""
    settings = shipping_settings(kafka_broker.bootstrap, topic_prefix)
    make_topic(settings)
    fill(tmp_path, "node-a", range(50))
    drain(settings, tmp_path)
    fill(tmp_path, "node-a", range(50, 80))
    assert drain(settings, tmp_path).totals.shipped_batches == 30
    assert [record.value for record in arrived(settings)] == logged_payloads(tmp_path, "node-a")


def test_a_broker_that_is_killed_under_load_loses_nothing(
    own_broker: Broker, topic_prefix: str, tmp_path: Path
) -> None:
    """Batches that were on their way when the broker died arrive after it is back, in order."""
    settings = shipping_settings(own_broker.bootstrap, topic_prefix)
    make_topic(settings)
    nodes = ("node-a", "node-b")
    with shipping(settings, tmp_path) as at_work:
        for start in range(0, 300, 50):
            for node in nodes:
                fill(tmp_path, node, range(start, start + 50), size=20_000)
            if start == 100:
                wait_until(lambda: at_work.shipper.totals.shipped_batches > 0, "nothing shipped")
                own_broker.kill()
        wait_until(lambda: at_work.shipper.trouble is not None, "the death went unnoticed")
        assert isinstance(at_work.shipper.trouble, BrokerUnreachableError)
        own_broker.start()
        wait_until(lambda: at_work.shipper.totals.shipped_batches == 600, "not all arrived")
        assert at_work.shipper.trouble is None
    records = arrived(settings)
    for node in nodes:
        assert first_arrivals(records, node) == logged_payloads(tmp_path, node)


def test_a_frozen_broker_is_given_up_and_used_again(
    own_broker: Broker, topic_prefix: str, tmp_path: Path
) -> None:
    """A broker that answers nothing costs no client that spins, and no batch."""
    settings = shipping_settings(own_broker.bootstrap, topic_prefix)
    make_topic(settings)
    with shipping(settings, tmp_path) as at_work:
        fill(tmp_path, "node-a", range(20))
        wait_until(lambda: at_work.shipper.totals.shipped_batches == 20, "not shipped")
        own_broker.pause()
        try:
            fill(tmp_path, "node-a", range(20, 60), size=50_000)
            wait_until(lambda: at_work.shipper.trouble is not None, "the silence went unnoticed")
            wait_until(
                lambda: at_work.metrics.value("moescope_agent_in_flight_bytes") == 0,
                "a client that was given up holds batches",
            )
        finally:
            own_broker.resume()
        wait_until(lambda: at_work.shipper.totals.shipped_batches == 60, "not all arrived")
        metrics = at_work.metrics
        assert metrics.value("moescope_agent_shipped_batches_total", node="node-a") == 60
        assert metrics.value("moescope_agent_client_rebuilds_total") >= 1
        assert metrics.value("moescope_agent_delivery_failures_total", reason="unreachable") >= 1
        senders = [each.name for each in threading.enumerate() if "network" in each.name]
        assert len(senders) == 1
    assert first_arrivals(arrived(settings), "node-a") == logged_payloads(tmp_path, "node-a")


def test_a_topic_that_is_made_later_is_found(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """A fleet may be started before its topics; what is missing is named until it is there."""
    settings = shipping_settings(kafka_broker.bootstrap, topic_prefix)
    fill(tmp_path, "node-a", range(10))
    with shipping(settings, tmp_path) as at_work:
        wait_until(lambda: at_work.shipper.trouble is not None, "nothing was said")
        assert isinstance(at_work.shipper.trouble, TopicMissingError)
        assert f"{topic_prefix}.routing" in str(at_work.shipper.trouble)
        make_topic(settings)
        wait_until(lambda: at_work.shipper.totals.shipped_batches == 10, "not shipped")
    assert [record.value for record in arrived(settings)] == logged_payloads(tmp_path, "node-a")


def test_a_record_over_the_limit_is_kept_beside_the_log(
    kafka_broker: SharedBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """One batch that no broker takes neither stops the others nor is lost."""
    settings = shipping_settings(kafka_broker.bootstrap, topic_prefix)
    make_topic(settings, largest=100_000)
    with BatchLogWriter(tmp_path, "node-a") as writer:
        for number in range(30):
            writer.append(payload_of("node-a", number, 200_000 if number in {3, 17} else 3_000))
    totals = drain(settings, tmp_path).totals
    assert (totals.shipped_batches, totals.undeliverable_batches) == (28, 2)
    logged = logged_payloads(tmp_path, "node-a")
    fits = [payload for payload in logged if len(payload) == 3_000]
    assert first_arrivals(arrived(settings), "node-a") == fits
    folder = tmp_path / "undeliverable" / "node-a"
    kept = sorted(folder.glob("*.batch"))
    assert [path.read_bytes() for path in kept] == [logged[3], logged[17]]
    described = json.loads(kept[0].with_suffix(".json").read_text())
    assert (described["node"], described["offset"], described["bytes"]) == ("node-a", 3, 200_000)
    assert cursor_offsets(tmp_path / "node-a") == {"kafka": 30}


def test_what_the_cap_drops_while_no_broker_answers_is_counted(
    own_broker: Broker, topic_prefix: str, tmp_path: Path
) -> None:
    """Shipped and dropped batches together are those that were written, to the batch."""
    settings = shipping_settings(own_broker.bootstrap, topic_prefix)
    make_topic(settings)
    own_broker.kill()
    fill(tmp_path, "node-a", [0], byte_cap=200_000)
    with shipping(settings, tmp_path) as at_work:
        wait_until(lambda: bool(cursor_offsets(tmp_path / "node-a")), "no cursor was registered")
        fill(tmp_path, "node-a", range(1, 1_000), size=1_000, byte_cap=200_000)
        wait_until(lambda: at_work.shipper.trouble is not None, "nothing was said")
        log_bytes = sum(path.stat().st_size for path in (tmp_path / "node-a").glob("*.seg"))
        assert log_bytes <= 200_000
        own_broker.start()
        with BatchLogReader(tmp_path, "node-a") as reader:
            dropped = reader.drops().dropped_records
        wait_until(
            lambda: at_work.shipper.totals.shipped_batches + dropped >= 1_000, "not all arrived"
        )
    assert dropped > 0
    totals = at_work.shipper.totals
    assert totals.shipped_batches + dropped == 1_000
    assert totals.skipped_batches == dropped
    assert at_work.metrics.value("moescope_agent_dropped_batches_total", node="node-a") == dropped
    assert first_arrivals(arrived(settings), "node-a") == logged_payloads(tmp_path, "node-a")


def test_without_a_broker_a_shipper_starts(topic_prefix: str, tmp_path: Path) -> None:
    """An agent may start first; its cursors are there at once, so that the byte cap is exact."""
    settings = shipping_settings("127.0.0.1:9", topic_prefix, kafka_connect_timeout=0.5)
    fill(tmp_path, "node-a", range(3))
    with shipping(settings, tmp_path) as at_work:
        wait_until(lambda: at_work.shipper.trouble is not None, "nothing was said")
        assert cursor_offsets(tmp_path / "node-a") == {"kafka": 0}
    assert at_work.shipper.drain(seconds=0) == 3


def test_without_brokers_configured_there_is_no_shipper(tmp_path: Path) -> None:
    """A missing setting is said at once, not tried for ever."""
    with pytest.raises(SettingsError):
        Shipper(shipping_settings("", "p"), tmp_path, SelfMetrics())


@pytest.fixture(scope="module")
def secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that asks who is there: by password, or by certificate."""
    broker_choice.require_native()
    folder = tmp_path_factory.mktemp("secure")
    with KafkaBroker(folder, scram_users={"agent": "right"}, mutual_tls=True) as broker:
        yield broker


def test_the_right_password_is_used_once_it_is_there(
    secure_broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    """A wrong password is loud and harms nothing; the file is read again at each attempt."""
    password = tmp_path / "password"
    password.write_text("wrong\n")
    root = tmp_path / "log"
    open_settings = shipping_settings(secure_broker.bootstrap, topic_prefix)
    make_topic(open_settings)
    assert secure_broker.sasl_bootstrap is not None
    settings = shipping_settings(
        secure_broker.sasl_bootstrap,
        topic_prefix,
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_sasl_mechanism="SCRAM-SHA-512",
        kafka_sasl_username="agent",
        kafka_sasl_password_file=str(password),
    )
    fill(root, "node-a", range(10))
    with shipping(settings, root) as at_work:
        wait_until(lambda: at_work.shipper.trouble is not None, "nothing was said")
        assert isinstance(at_work.shipper.trouble, BrokerRefusedError)
        password.write_text("right\n")
        wait_until(lambda: at_work.shipper.totals.shipped_batches == 10, "not shipped")
    records = arrived(open_settings)
    assert [record.value for record in records] == logged_payloads(root, "node-a")


def test_a_certificate_opens_the_door_and_its_absence_is_named(
    secure_broker: KafkaBroker, tmp_path: Path, topic_prefix: str
) -> None:
    """Mutual TLS ships; without a certificate the agent says that it was refused."""
    root = tmp_path / "log"
    open_settings = shipping_settings(secure_broker.bootstrap, topic_prefix)
    make_topic(open_settings)
    files = secure_broker.tls_files
    assert files is not None
    assert secure_broker.tls_bootstrap is not None
    options = {"kafka_security_protocol": "SSL", "kafka_ssl_ca_file": str(files.authority)}
    stranger = shipping_settings(secure_broker.tls_bootstrap, topic_prefix, **options)
    fill(root, "node-a", range(10))
    with shipping(stranger, root) as at_work:
        wait_until(lambda: at_work.shipper.trouble is not None, "nothing was said")
        assert isinstance(at_work.shipper.trouble, BrokerRefusedError)
    options["kafka_ssl_certificate_file"] = str(files.client_certificate)
    options["kafka_ssl_key_file"] = str(files.client_key)
    drain(shipping_settings(secure_broker.tls_bootstrap, topic_prefix, **options), root)
    records = arrived(open_settings)
    assert [record.value for record in records] == logged_payloads(root, "node-a")
