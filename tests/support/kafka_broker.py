"""A native Apache Kafka: one node, in a folder, on ports of its own, that tests may kill and pause.

    with KafkaBroker(folder) as broker:   # started, answers
        broker.bootstrap                  # "127.0.0.1:PORT"
        broker.kill()                     # SIGKILL
        broker.start()                    # the same data and ports

It ends with the process that made it, whatever happens to that: `support.kafka_leash`.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from support.kafka_properties import (
    HOST,
    SCRAM,
    Ports,
    log4j_text,
    properties_text,
    server_properties,
)
from support.kafka_tls import TlsFiles, make_tls_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARIES = ROOT / ".tools" / "kafka" / "libs"
CLASS_ARCHIVE = LIBRARIES / "kafka.jsa"
FETCH_LIBRARIES = ROOT / "scripts" / "kafka_jars.sh"
LEASH = Path(__file__).with_name("kafka_leash.py")

# Compiled once over, Java starts sooner and stays fast enough for tests.
JAVA = ("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable")
START_SECONDS = 60.0
STOP_SECONDS = 20.0
LOOK_AGAIN_SECONDS = 0.05

# Below the range that the kernel gives to outgoing connections, so that none of them takes a
# port while its broker is down.
_PORTS = range(20_000, 32_000)


class BrokerError(RuntimeError):
    """The broker did not do what it was told; the text ends with what it wrote itself."""


class KafkaBroker:
    """One node of Apache Kafka (KRaft), started and stopped at will on the same data.

    Args:
        folder: Its own; data, configuration and what it writes. Data found there is used.
        port: Of the plain listener, 1 – 65534, the controller being at the next one; None
            chooses free ports.
        settings: Lines of `server.properties`, stronger than moescope's own.
        scram_users: Names and passwords for a SASL/SCRAM-SHA-512 listener, `sasl_bootstrap`.
            They are written when the data is first made.
        mutual_tls: Whether there is a TLS listener that asks for certificates, `tls_bootstrap`.
        java_options: Of the broker's Java; None uses the archive of its classes, if there is one.

    Attributes:
        bootstrap: Address of the plain listener.
        sasl_bootstrap: Address of the SASL listener, or None.
        tls_bootstrap: Address of the TLS listener, or None.
        tls_files: Certificates and keys for clients, or None.
        folder: As given.
        log_file: Warnings and errors of the broker.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        scram_users: Mapping[str, str] | None = None,
        mutual_tls: bool = False,
        java_options: Sequence[str] | None = None,
    ) -> None:
        self.folder = folder
        self.log_file = folder / "broker.log"
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = dict(settings or {})
        self._scram_users = dict(scram_users or {})
        self._java_options = _class_archive() if java_options is None else java_options
        self._ports = _choose_ports(port)
        if not self._scram_users:
            self._ports = replace(self._ports, sasl=None)
        if not mutual_tls:
            self._ports = replace(self._ports, tls=None)
        self.tls_files: TlsFiles | None = make_tls_files(folder / "tls") if mutual_tls else None
        self.bootstrap = f"{HOST}:{self._ports.plain}"
        self.sasl_bootstrap = _address(self._ports.sasl)
        self.tls_bootstrap = _address(self._ports.tls)
        self._data = folder / "data"
        self._properties = folder / "server.properties"
        self._pid_file = folder / "pid"
        self._lease = ExitStack()
        self._leash: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process is there; a paused one is."""
        return self._leash is not None and self._leash.poll() is None

    @property
    def process_id(self) -> int:
        """Of the Java process.

        Raises:
            BrokerError: When it does not run.
        """
        if not self.is_running:
            raise BrokerError("The broker does not run.")
        return int(self._pid_file.read_text())

    def start(self) -> Self:
        """Start on the data in the folder, or on new data, and wait until it answers.

        Raises:
            BrokerError: When it runs already, ends at once, or does not answer in time.
        """
        if self.is_running:
            raise BrokerError("The broker runs already.")
        self._configure()
        self._pid_file.unlink(missing_ok=True)
        hold_lease(self.folder, self._lease)
        command = [sys.executable, "-I", "-S", str(LEASH), str(lease_file(self.folder))]
        command += [
            str(self._pid_file),
            *self._java("kafka.Kafka", *self._java_options),
            str(self._properties),
        ]
        with (self.folder / "console.log").open("ab") as console:
            self._leash = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                # Ctrl-C is for the test run, which then stops the broker in order.
                start_new_session=True,
            )
        self._wait_until_it_answers()
        return self

    def stop(self, *, seconds: float = STOP_SECONDS) -> None:
        """End it in order (SIGTERM), or by force when that takes longer."""
        self._end(signal.SIGTERM, seconds)

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would, and wait until it is gone."""
        self._end(signal.SIGKILL, STOP_SECONDS)

    def pause(self) -> None:
        """Stop its execution (SIGSTOP): connections stay open, and nothing answers."""
        os.kill(self.process_id, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after a pause (SIGCONT)."""
        os.kill(self.process_id, signal.SIGCONT)

    def hand_over(self) -> None:
        """Leave it running for as long as anybody holds the folder's lease."""
        if self._leash is not None:
            # It is not waited for by this process: say so, or Popen warns when it is forgotten.
            self._leash.returncode = 0
            self._leash = None
        self._lease.close()

    def close(self) -> None:
        """Stop it, if it runs; for good."""
        self.stop()
        self._lease.close()

    def __enter__(self) -> Self:
        """Start it."""
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _configure(self) -> None:
        (self.folder / "log4j2.properties").write_text(log4j_text(self.log_file))
        properties = server_properties(
            self._data, self._ports, tls=self.tls_files, settings=self._settings
        )
        self._properties.write_text(properties_text(properties))
        if (self._data / "meta.properties").exists():
            return
        command = [*self._java("kafka.tools.StorageTool", *_class_archive()), "format"]
        command += ["--cluster-id", str(uuid.uuid4()), "--config", str(self._properties)]
        for name, password in self._scram_users.items():
            command += ["--add-scram", f"{SCRAM}=[name={name},password={password}]"]
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode != 0:
            raise BrokerError(f"Kafka could not prepare {self._data}:\n{done.stdout}")

    def _java(self, main_class: str, *options: str) -> list[str]:
        configuration = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [*JAVA, *options, configuration, "-cp", f"{LIBRARIES}/*", main_class]

    def _wait_until_it_answers(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not answers(self.bootstrap):
            if not self.is_running:
                raise BrokerError(f"Kafka ended while it started:\n{self._last_words()}")
            if time.monotonic() > end:
                self.kill()
                raise BrokerError(
                    f"Kafka did not answer in {START_SECONDS:.0f} s:\n{self._last_words()}"
                )
            time.sleep(LOOK_AGAIN_SECONDS)

    def _end(self, by: signal.Signals, seconds: float) -> None:
        if self._leash is None:
            return
        with suppress(ProcessLookupError, FileNotFoundError, BrokerError):
            os.kill(self.process_id, by)
            # A paused process would take SIGTERM only when it goes on.
            os.kill(self.process_id, signal.SIGCONT)
        try:
            self._leash.wait(seconds)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, FileNotFoundError, BrokerError):
                os.kill(self.process_id, signal.SIGKILL)
            self._leash.wait(STOP_SECONDS)
        self._leash = None

    def _last_words(self) -> str:
        texts = (self.folder / "console.log", self.log_file)
        return "".join(path.read_text()[-2_000:] for path in texts if path.exists())


def answers(bootstrap: str, *, seconds: float = 1.0) -> bool:
    """Whether a broker at that address answers an ApiVersions request: not only its socket.

    Kafka opens its sockets early, and answers once it has caught up and may serve clients.
    """
    host, port = bootstrap.rsplit(":", 1)
    api_versions_version_0 = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as connection:
            connection.sendall(
                struct.pack(">i", len(api_versions_version_0)) + api_versions_version_0
            )
            return len(connection.recv(10, socket.MSG_WAITALL)) == 10
    except OSError:
        return False


def lease_file(folder: Path) -> Path:
    """The file whose shared lock keeps a broker running."""
    return folder / "lease"


def hold_lease(folder: Path, until: ExitStack) -> None:
    """Keep the broker of a folder running until the stack is closed, or this process ends."""
    file = until.enter_context(lease_file(folder).open("ab"))
    # Waits while a broker that nobody held any longer is being ended.
    fcntl.flock(file, fcntl.LOCK_SH)


def _class_archive() -> list[str]:
    return [f"-XX:SharedArchiveFile={CLASS_ARCHIVE}"] if CLASS_ARCHIVE.exists() else []


def _address(port: int | None) -> str | None:
    return None if port is None else f"{HOST}:{port}"


def _choose_ports(port: int | None) -> Ports:
    # Tests seed `random` alike in every worker: the system's own source differs.
    candidates = random.SystemRandom().sample(_PORTS, 64)
    free = [candidate for candidate in candidates if _is_free(candidate)]
    if port is None:
        port = free.pop()
        return Ports(plain=port, controller=free.pop(), sasl=free.pop(), tls=free.pop())
    if not _is_free(port):
        raise BrokerError(f"Port {port} of {HOST} is taken.")
    return Ports(plain=port, controller=port + 1, sasl=free.pop(), tls=free.pop())


def free_port() -> int:
    """A free port of 127.0.0.1 that stays free of outgoing connections."""
    return _choose_ports(None).plain


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
