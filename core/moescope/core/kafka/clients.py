"""Clients of the broker, opened with the settings; the library is imported when one is opened."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from moescope.core.broker_addresses import broker_addresses
from moescope.core.errors import SettingsError
from moescope.core.kafka.connections import Connections
from moescope.core.kafka.errors import MissingChecksumError, explain
from moescope.core.kafka.tls_files import check_tls_files, secret
from moescope.core.kafka.topics import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from moescope.core.settings import Settings

MAX_REQUEST_BYTES: Final = MAX_MESSAGE_BYTES + (1 << 16)
FETCH_BYTES: Final = 32 << 20


def open_producer(settings: Settings, **options: Any) -> Any:
    """An idempotent `kafka.KafkaProducer` that waits for all in-sync replicas.

    Args:
        settings: Brokers, security and time-outs.
        options: Of the library; they win.

    Raises:
        SettingsError: No brokers are named, or a file cannot be read.
        MissingChecksumError: `crc32c` is not installed.
        BrokerUnreachableError: Nobody answered in `kafka.connect_timeout`.
        BrokerRefusedError: Who we are was not accepted.
    """
    delivery_ms = _ms(settings["kafka.delivery_timeout"])
    return _open(
        "KafkaProducer",
        settings,
        {
            "acks": "all",
            "enable_idempotence": True,
            "allow_auto_create_topics": False,
            "delivery_timeout_ms": delivery_ms,
            "request_timeout_ms": min(_ms(settings["kafka.request_timeout"]), delivery_ms),
            "max_block_ms": _ms(settings["kafka.connect_timeout"]),
            "max_request_size": MAX_REQUEST_BYTES,
            # A record is a whole batch already: what waits for company only waits.
            "linger_ms": 0,
            "bootstrap_timeout_ms": _ms(settings["kafka.connect_timeout"]),
            **options,
        },
    )


def open_consumer(settings: Settings, **options: Any) -> Any:
    """A `kafka.KafkaConsumer` that commits nothing by itself and sees committed records only.

    Args:
        settings: Brokers, security and time-outs.
        options: Of the library; they win. Raises like :func:`open_producer`.
    """
    return _open(
        "KafkaConsumer",
        settings,
        {
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
            "allow_auto_create_topics": False,
            "max_partition_fetch_bytes": MAX_MESSAGE_BYTES,
            "fetch_max_bytes": FETCH_BYTES,
            "request_timeout_ms": _ms(settings["kafka.request_timeout"]),
            "bootstrap_timeout_ms": _ms(settings["kafka.connect_timeout"]),
            **options,
        },
    )


def open_admin(settings: Settings, **options: Any) -> Any:
    """A `kafka.KafkaAdminClient`; raises like :func:`open_producer`."""
    return _open(
        "KafkaAdminClient",
        settings,
        {
            "request_timeout_ms": _ms(settings["kafka.request_timeout"]),
            "bootstrap_timeout_ms": _ms(settings["kafka.connect_timeout"]),
            **options,
        },
    )


def _open(kind: str, settings: Settings, options: dict[str, Any]) -> Any:
    connection = _connection(settings)
    if find_spec("crc32c") is None:
        raise MissingChecksumError(
            "The package crc32c is missing.",
            why="Without it the Kafka client computes checksums in Python, at about 5 MB/s.",
            next_step="pip install crc32c",
        )
    import kafka  # noqa: PLC0415 (a quarter of a second that only a client needs)

    # What the library says of each lost connection is counted and told by whoever uses it.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    connections = Connections()
    try:
        return getattr(kafka, kind)(kafka_client=connections.client, **connection, **options)
    except (kafka.errors.KafkaError, OSError) as error:
        # A constructor that fails leaves its sockets and its thread behind.
        connections.close()
        raise explain(connections.failure or error, "connecting", settings) from error


def _connection(settings: Settings) -> dict[str, Any]:
    servers = broker_addresses(settings["kafka.bootstrap_servers"])
    if not servers:
        raise SettingsError(
            "No Kafka brokers are configured.",
            why="kafka.bootstrap_servers is empty.",
            next_step="Name the settings file that sets it with --config, or set "
            "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS=kafka:9092.",
        )
    protocol = settings["kafka.security_protocol"]
    options: dict[str, Any] = {
        "bootstrap_servers": servers,
        "client_id": "moescope",
        "security_protocol": protocol,
        "reconnect_backoff_max_ms": 2_000,
    }
    if protocol.startswith("SASL_"):
        options |= {
            "sasl_mechanism": settings["kafka.sasl_mechanism"] or None,
            "sasl_plain_username": settings["kafka.sasl_username"],
            "sasl_plain_password": secret(settings, "kafka.sasl_password_file"),
        }
    if protocol.endswith("SSL"):
        check_tls_files(settings)
        options |= {
            "ssl_check_hostname": settings["kafka.ssl_check_hostname"],
            "ssl_cafile": settings["kafka.ssl_ca_file"] or None,
            "ssl_certfile": settings["kafka.ssl_certificate_file"] or None,
            "ssl_keyfile": settings["kafka.ssl_key_file"] or None,
            "ssl_password": secret(settings, "kafka.ssl_key_password_file") or None,
        }
    return options


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1_000))
