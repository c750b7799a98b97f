"""A small HTTP server for scrapers and probes: no client can hold it up or make it grow."""

from __future__ import annotations

import io
import json
import socket
import socketserver
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final, Self

from moescope.console.output import note
from moescope.core.errors import DependencyUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.console.watch.exposition import Exposition
    from moescope.console.watch.watcher import HealthWatcher

MOST_REQUEST_BYTES: Final = 16 << 10
MOST_CLIENTS: Final = 16
REQUEST_SECONDS: Final = 2.0
"""For the whole of a request: a scraper sends it as soon as it is connected."""
ANSWER_SECONDS: Final = 5.0
_EVICTION_SECONDS: Final = 1.0
"""For the thread of a client that has to go to end; and an answer younger than that is left."""
_POLL_SECONDS: Final = 0.2

Answer = tuple[HTTPStatus, bytes, str]


class WatchAddressError(DependencyUnreachableError):
    """Metrics cannot be served at `watch.host` and `watch.port`."""


class WatchServer:
    """Serves `/metrics` and `/healthz` from threads of its own.

    Args:
        host: Address to listen on.
        port: Port; 0 takes any free one.
        exposition: Renders the metrics.
        watcher: Knows the health.

    Raises:
        WatchAddressError: The address or the port cannot be had.
    """

    def __init__(
        self, host: str, port: int, exposition: Exposition, watcher: HealthWatcher
    ) -> None:
        def metrics(accept: str) -> Answer:
            body, content_type = exposition.render(accept)
            return HTTPStatus.OK, body, content_type

        def health(_: str) -> Answer:
            status = HTTPStatus.OK if watcher.is_well else HTTPStatus.SERVICE_UNAVAILABLE
            body = json.dumps(watcher.latest.document(), default=str).encode()
            return status, body, "application/json"

        try:
            self._server = _Server(host, port, {"/metrics": metrics, "/healthz": health})
        except (OSError, OverflowError) as error:
            raise WatchAddressError(
                f"Metrics cannot be served at {host} port {port}.",
                why=str(error),
                next_step="Set watch.port to a port that nobody has, another moescope included "
                "(0: none), and watch.host to an address of this machine.",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(_POLL_SECONDS,),
            name="moescope-watch",
            daemon=True,
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; clients that are still connected are left to themselves."""
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    """Threads for a bounded number of clients; silent ones make room for further ones."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 4 * MOST_CLIENTS

    def __init__(self, host: str, port: int, paths: dict[str, Callable[[str], Answer]]) -> None:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        self.paths = paths
        self._room = threading.BoundedSemaphore(MOST_CLIENTS)
        self._clients = _Clients()
        super().__init__((str(address[0]), int(address[1])), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (the base class's)
        """Answer on a thread; where there is no room, the one that has kept us longest goes."""
        if not self._room.acquire(blocking=False) and not (
            self._clients.end_one() and self._room.acquire(timeout=_EVICTION_SECONDS)
        ):
            self.shutdown_request(request)
            return
        try:
            self._clients.came(request)
            super().process_request(request, client_address)
        except BaseException:
            self._clients.went(request)
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (the base class's)
        """Answer one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.went(request)
            self._room.release()

    def is_asked_by(self, request: Any) -> None:  # noqa: ANN401 (a socket)
        """A client's request is complete, and will be answered."""
        self._clients.asked(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (the base class's)
        """A client that goes away or dawdles is its own trouble."""


class _Clients:
    """Who is connected, and since when: those that say nothing have to make room for others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent: dict[socket.socket, float] = {}
        self._answered: dict[socket.socket, float] = {}

    def came(self, client: socket.socket) -> None:
        """One is connected."""
        with self._lock:
            self._silent[client] = time.monotonic()

    def asked(self, client: socket.socket) -> None:
        """One has sent its request."""
        with self._lock:
            if self._silent.pop(client, None) is not None:
                self._answered[client] = time.monotonic()

    def went(self, client: socket.socket) -> None:
        """One is done with."""
        with self._lock:
            self._silent.pop(client, None)
            self._answered.pop(client, None)

    def end_one(self) -> bool:
        """Cut off who has been silent for longest, or else takes its answer slowest, if any."""
        with self._lock:
            client = next(iter(self._silent), None)
            if client is None:
                client, began = next(iter(self._answered.items()), (None, 0.0))
                if client is None or time.monotonic() - began < _EVICTION_SECONDS:
                    return False
            self._silent.pop(client, None)
            self._answered.pop(client, None)
            # Its thread, which waits for it, closes it.
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            return True


class _Handler(BaseHTTPRequestHandler):
    """One request, one answer."""

    server: _Server
    server_version = "moescope"
    sys_version = ""

    def setup(self) -> None:
        """Read through a limit of bytes and of time; write within a time, too."""
        super().setup()
        self.rfile = io.BufferedReader(_LimitedReader(self.connection))

    def do_GET(self) -> None:
        """Answer with a body."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer without one."""
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's)
        """Requests are no news."""

    def _answer(self, *, with_body: bool) -> None:
        self.server.is_asked_by(self.connection)
        self.connection.settimeout(ANSWER_SECONDS)
        answer = self.server.paths.get(self.path.partition("?")[0])
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND, explain=" and ".join(self.server.paths))
            return
        try:
            status, body, content_type = answer(self.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001 (the component goes on without its metrics)
            note(f"{self.path} cannot be served: {error!r}")
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


class _LimitedReader(io.RawIOBase):
    """A socket's bytes, at most so many and not for longer than so long, all together."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = MOST_REQUEST_BYTES
        self._until = time.monotonic() + REQUEST_SECONDS

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 (any writable buffer)
        """Read what is there, waiting no longer than allowed."""
        seconds = self._until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        if not self._left:
            raise ConnectionAbortedError
        self._connection.settimeout(seconds)
        number = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= number
        return number
