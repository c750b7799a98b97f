"""A real HTTP server that takes webhooks as a script tells it to."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass
class Seen:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class WebhookServer:
    """What the server saw, and what it answers next.

    Attributes:
        answers: Status codes, or functions of the handler that answer themselves; 200 once they
            are used up.
    """

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    answers: list[int | Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=list)


@contextmanager
def webhook_server() -> Iterator[WebhookServer]:
    """A server on a free local port."""
    state = WebhookServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.seen.append(Seen(self.path, dict(self.headers), body))
            answer = state.answers.pop(0) if state.answers else 200
            if callable(answer):
                answer(self)
                return
            self.send_response(answer)
            if 300 <= answer < 400:
                self.send_header("Location", f"{state.url}/elsewhere")
            self.end_headers()
            self.wfile.write(b"sorry\nno" if answer >= 400 else b"")

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
