"""Clients of a broker that is not there leave nothing behind."""

from __future__ import annotations

import gc
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.kafka_settings import kafka_settings

from moescope.core.kafka import (
    BrokerRefusedError,
    BrokerUnreachableError,
    open_admin,
    open_consumer,
    open_producer,
)
from moescope.core.kafka.errors import MissingChecksumError

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.broker_choice import SharedBroker


@pytest.mark.parametrize("open_client", [open_admin, open_consumer, open_producer])
def test_client_that_finds_no_broker_leaves_no_thread_and_no_socket(
    open_client: Callable[..., object],
) -> None:
    """Who tries again for hours must not gather threads and files with each try."""
    settings = kafka_settings("127.0.0.1:1", "absent", kafka__connect_timeout=0.5)
    with pytest.raises(BrokerUnreachableError):
        open_client(settings)
    threads, files = threading.active_count(), _open_files()
    for _ in range(3):
        with pytest.raises(BrokerUnreachableError):
            open_client(settings)
        gc.collect()
    assert threading.active_count() <= threads
    assert _open_files() <= files


def test_producer_waits_for_all_replicas_and_repeats_nothing(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """An acknowledged record is on every in-sync replica, and once, whatever is tried again."""
    with closing(open_producer(kafka_settings(kafka_broker.bootstrap, topic_prefix))) as producer:
        # The library keeps "all" as the number that the protocol has for it.
        assert producer.config["acks"] in {-1, "all"}
        assert producer.config["enable_idempotence"] is True
        assert producer.config["allow_auto_create_topics"] is False


def test_without_the_fast_checksum_no_client_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client at a thirtieth of its speed would look like a slow broker."""
    monkeypatch.setitem(sys.modules, "crc32c", None)
    with pytest.raises(MissingChecksumError) as caught:
        open_admin(kafka_settings("127.0.0.1:1", "absent"))
    assert "pip install crc32c" in caught.value.next_step


def test_tls_client_at_a_plain_port_is_told_of_the_protocol(
    kafka_broker: SharedBroker, topic_prefix: str
) -> None:
    """The two ends disagree on TLS: the message names the setting that says which it is."""
    settings = kafka_settings(
        kafka_broker.bootstrap,
        topic_prefix,
        kafka__security_protocol="SSL",
        kafka__connect_timeout=1,
    )
    with pytest.raises((BrokerUnreachableError, BrokerRefusedError)) as caught:
        open_admin(settings)
    assert "kafka.security_protocol" in str(caught.value)


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
