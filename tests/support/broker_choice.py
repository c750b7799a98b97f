"""Where the tests' Kafka comes from: a container where an engine answers, else a native one."""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from support.kafka_broker import (
    FETCH_LIBRARIES,
    LEASH,
    LOOK_AGAIN_SECONDS,
    START_SECONDS,
    BrokerError,
    KafkaBroker,
    answers,
    free_port,
    hold_lease,
    lease_file,
)
from support.kafka_class_archive import ensure_class_archive

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCKER_SECONDS = 3.0
_CONTAINER_PROGRAM = Path(__file__).with_name("kafka_container.py")


class BrokerKind(StrEnum):
    """What a broker is."""

    CONTAINER = "container"
    NATIVE = "native"


class Broker(Protocol):
    """What tests may do to a broker of their own."""

    bootstrap: str

    def start(self) -> object:
        """Start on the same data and port, and wait until it answers."""

    def stop(self) -> None:
        """End it in order."""

    def kill(self) -> None:
        """End it as a crash would."""

    def pause(self) -> None:
        """Freeze it."""

    def resume(self) -> None:
        """Let it go on."""


@dataclass(frozen=True, slots=True)
class SharedBroker:
    """A broker that several tests, and processes of a test run, use at once.

    Attributes:
        bootstrap: Its address.
        kind: What it is.
    """

    bootstrap: str
    kind: str


def unavailable(what: str) -> None:
    """Skip the test, or fail it if services are required."""
    if os.environ.get("MOESCOPE_REQUIRE_SERVICES") == "1":
        pytest.fail(what)
    pytest.skip(what)


def docker_answers() -> bool:
    """Whether a Docker engine is there, and the library that tests drive it with."""
    if shutil.which("docker") is None or importlib.util.find_spec("testcontainers") is None:
        return False
    try:
        done = subprocess.run(
            ["docker", "info"], check=False, capture_output=True, timeout=DOCKER_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@functools.cache
def missing_for_native() -> str:
    """What the machine lacks for a native broker, once its jars have been fetched, or nothing."""
    done = subprocess.run([str(FETCH_LIBRARIES)], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip()
    ensure_class_archive()
    return ""


@functools.cache
def broker_kind() -> BrokerKind:
    """The kind that this process uses; skips or fails where there is none."""
    kind = BrokerKind.CONTAINER if docker_answers() else BrokerKind.NATIVE
    if kind is BrokerKind.NATIVE:
        require_native()
    return kind


def require_native() -> None:
    """Skip, or fail, where no native broker can be had."""
    if missing := missing_for_native():
        unavailable(missing)


@contextmanager
def own_broker(folder: Path) -> Iterator[Broker]:
    """A broker that nobody else uses."""
    if broker_kind() is BrokerKind.NATIVE:
        with KafkaBroker(folder) as native:
            yield native
        return
    from support.kafka_container import ContainerBroker  # noqa: PLC0415 (needs testcontainers)

    with ContainerBroker(free_port()) as container:
        yield container


@contextmanager
def shared_broker(folder: Path) -> Iterator[SharedBroker]:
    """The one broker of all processes that name this folder: the last one to leave ends it.

    Raises:
        BrokerError: When it does not start.
    """
    kind = broker_kind()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as use:
        with (folder / "starting").open("ab") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            hold_lease(folder, use)
            shared = _running(folder)
            if shared is None:
                shared = _start_shared(folder, kind)
                print(f"Kafka for the tests: {kind}, at {shared.bootstrap}", file=sys.stderr)  # noqa: T201 (said once a run)
        yield shared


def _running(folder: Path) -> SharedBroker | None:
    note = folder / "shared.json"
    if not note.exists():
        return None
    shared = SharedBroker(**json.loads(note.read_text()))
    return shared if answers(shared.bootstrap, seconds=5) else None


def _start_shared(folder: Path, kind: BrokerKind) -> SharedBroker:
    if kind is BrokerKind.NATIVE:
        broker = KafkaBroker(folder)
        broker.start()
        broker.hand_over()
        bootstrap = broker.bootstrap
    else:
        bootstrap = _start_container(folder)
    shared = SharedBroker(bootstrap, str(kind))
    (folder / "shared.json").write_text(json.dumps(asdict(shared)))
    return shared


def _start_container(folder: Path) -> str:
    port = free_port()
    program = subprocess.Popen(
        [
            *(sys.executable, str(LEASH), str(lease_file(folder)), str(folder / "pid")),
            *(sys.executable, str(_CONTAINER_PROGRAM), str(port)),
        ],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + START_SECONDS
    while not answers(f"127.0.0.1:{port}"):
        if program.poll() is not None or time.monotonic() > end:
            raise BrokerError("Kafka did not start in a container; docker's message is above.")
        time.sleep(LOOK_AGAIN_SECONDS)
    return f"127.0.0.1:{port}"
