"""One deadline over a whole HTTP exchange."""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.request
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from http.client import HTTPResponse


class Deadline:
    """Ends what is connected through it when its time is over.

    A socket's own timeout starts again with each byte, so that a server could keep its client
    forever. Only the look-up of a host name is out of reach; the resolver has its own limits.

    Args:
        seconds: From the construction to the end.
    """

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._passed = False

    @property
    def passed(self) -> bool:
        """Whether the exchange was ended, or may have been."""
        return self._passed

    def __enter__(self) -> Self:
        """Let time run."""
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The exchange is over."""
        self._timer.cancel()
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets.clear()

    def connect(self, address: tuple[str, int], *_: object) -> socket.socket:
        """Connect to the first address of a host that answers in what is left of the time.

        Raises:
            OSError: None of them did.
        """
        failure: OSError = OSError("the host has no address")
        for family, kind, protocol, _name, target in socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM
        ):
            left = self._ends - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connecting = socket.socket(family, kind, protocol)
            try:
                connecting.settimeout(left)
                connecting.connect(target)
                self._watch(connecting)
            except OSError as error:
                connecting.close()
                failure = error
            else:
                return connecting
        raise failure

    def _watch(self, connected: socket.socket) -> None:
        with self._lock:
            if self._passed:
                raise TimeoutError
            # TLS takes the descriptor of the original away from it.
            self._sockets.append(connected.dup())

    def _end(self) -> None:
        with self._lock:
            self._passed = True
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


class BoundedHTTPHandler(urllib.request.HTTPHandler):
    """Opens `http:` within a deadline."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        """Connect, send, and read the head of the answer."""
        return self.do_open(partial(_bounded, http.client.HTTPConnection, self._deadline), req)


class BoundedHTTPSHandler(urllib.request.HTTPSHandler):
    """Opens `https:` within a deadline, the handshake included."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        """Connect, send, and read the head of the answer."""
        return self.do_open(partial(_bounded, http.client.HTTPSConnection, self._deadline), req)


def _bounded(
    kind: type[http.client.HTTPConnection],
    deadline: Deadline,
    host: str,
    **arguments: Any,  # noqa: ANN401 (whatever urllib hands over)
) -> http.client.HTTPConnection:
    connection = kind(host, **arguments)
    # The library's hook for the bare connection: TLS and a proxy's tunnel come after it.
    connection._create_connection = deadline.connect  # type: ignore[attr-defined]  # noqa: SLF001 - it has no public one
    return connection
