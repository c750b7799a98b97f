"""Apache Kafka in a container, through testcontainers: `python kafka_container.py PORT FOLDER`.

Run as a program it lives until it is ended, and testcontainers' reaper removes the container
after it. testcontainers is no dependency: this module is used where it and an engine are there.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any, Self

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(__file__).resolve().parents[2] / "core"),
]

from support.kafka_broker import (  # noqa: E402 - on the path just now
    LOOK_AGAIN_SECONDS,
    START_SECONDS,
    BrokerError,
    answers,
)
from support.kafka_properties import HOST, Ports, server_properties  # noqa: E402 - on the path just now

IMAGE = "apache/kafka:4.3.1"
_CONTROLLER_PORT = 9_093


class ContainerBroker:
    """One node of Apache Kafka in a container, with what tests do to `KafkaBroker`.

    Args:
        port: Of 127.0.0.1, kept over restarts.

    Attributes:
        bootstrap: Its address.
    """

    def __init__(self, port: int) -> None:
        from testcontainers.core.container import DockerContainer  # noqa: PLC0415 (not a dependency)

        self.bootstrap = f"{HOST}:{port}"
        container: Any = DockerContainer(IMAGE).with_bind_ports(port, port)
        for name, value in _container_properties(port).items():
            container = container.with_env(_variable(name), value)
        self._container = container
        self._made = False

    def start(self) -> Self:
        """Start it on its data, and wait until it answers.

        Raises:
            BrokerError: When it does not answer in time.
        """
        if self._made:
            self._wrapped().start()
        else:
            self._container.start()
            self._made = True
        end = time.monotonic() + START_SECONDS
        while not answers(self.bootstrap):
            if time.monotonic() > end:
                raise BrokerError(f"Kafka in {IMAGE} did not answer in {START_SECONDS:.0f} s.")
            time.sleep(LOOK_AGAIN_SECONDS)
        return self

    def stop(self) -> None:
        """End it in order."""
        self._wrapped().stop()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._wrapped().kill()

    def pause(self) -> None:
        """Freeze its processes."""
        self._wrapped().pause()

    def resume(self) -> None:
        """Let them go on."""
        self._wrapped().unpause()

    def close(self) -> None:
        """Remove it."""
        if self._made:
            self._container.stop()

    def __enter__(self) -> Self:
        """Start it."""
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        self.close()

    def _wrapped(self) -> Any:
        return self._container.get_wrapped_container()


def _container_properties(port: int) -> dict[str, str]:
    properties = server_properties(
        Path("/var/lib/kafka/data"), Ports(plain=port, controller=_CONTROLLER_PORT)
    )
    # Inside, the forwarded port arrives at another address than 127.0.0.1.
    return properties | {"listeners": properties["listeners"].replace(f"{HOST}:{port}", f":{port}")}


def _variable(name: str) -> str:
    return "KAFKA_" + name.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def main(port: str) -> None:
    """Run one until this process is ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ContainerBroker(int(port)):
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
