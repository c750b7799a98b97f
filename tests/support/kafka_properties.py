"""The `server.properties` of a native Apache Kafka that is controller and broker in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moescope.core.kafka.broker_settings import BROKER_SETTINGS, SINGLE_NODE_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from support.kafka_tls import TlsFiles

HOST = "127.0.0.1"
SCRAM = "SCRAM-SHA-512"

# Small is quick to start: a few threads, and a log cleaner that does not take 128 MiB at once.
_SMALL = {
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": str(8 << 20),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of 127.0.0.1 that one node listens on.

    Attributes:
        plain: Without encryption and authentication; always there.
        controller: Between controller and broker.
        sasl: SCRAM-SHA-512 without TLS, or None.
        tls: Mutual TLS, or None.
    """

    plain: int
    controller: int
    sasl: int | None = None
    tls: int | None = None


def server_properties(
    log_directory: Path,
    ports: Ports,
    *,
    tls: TlsFiles | None = None,
    settings: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Settings of a single node: moescope's own, where it listens, then `settings`, which win."""
    listeners = {"PLAINTEXT": ports.plain}
    properties: dict[str, str] = {}
    if ports.sasl is not None:
        listeners["SASL_PLAINTEXT"] = ports.sasl
        properties |= {
            "sasl.enabled.mechanisms": SCRAM,
            f"listener.name.sasl_plaintext.{SCRAM.lower()}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        }
    if ports.tls is not None and tls is not None:
        listeners["SSL"] = ports.tls
        properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(tls.broker_key_and_certificate),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(tls.authority),
            "ssl.client.auth": "required",
        }
    advertised = [f"{name}://{HOST}:{port}" for name, port in listeners.items()]
    return {
        **BROKER_SETTINGS,
        **SINGLE_NODE_SETTINGS,
        **_SMALL,
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{ports.controller}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": ",".join([*advertised, f"CONTROLLER://{HOST}:{ports.controller}"]),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(
            ["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in listeners)]
        ),
        "log.dirs": str(log_directory),
        **properties,
        **(settings or {}),
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """The settings as a Java properties file."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def log4j_text(log_file: Path) -> str:
    """A log4j2 configuration that writes warnings and errors to a file, and nothing else."""
    return properties_text(
        {
            "status": "error",
            "appender.file.type": "File",
            "appender.file.name": "file",
            "appender.file.fileName": str(log_file),
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.pattern": "%d{ISO8601} %p %c: %m%n",
            "rootLogger.level": "warn",
            "rootLogger.appenderRef.file.ref": "file",
        }
    )
