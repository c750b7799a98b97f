"""The outbox, a real store, and a real HTTP server that misbehaves."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.outbox_store import CREATED_US, add, clock_at, open_store, outbox
from support.webhook_server import WebhookServer, webhook_server

from moescope.core.errors import SettingsError
from moescope.core.settings import load_settings
from moescope.jobs.notifications import (
    Deliverer,
    DeliveryError,
    LogReceiver,
    Receiver,
    WebhookReceiver,
    next_try_us,
    receiver_names,
    receivers_from,
    send_test,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.server import BaseHTTPRequestHandler

    from moescope.storage import Store

    Answer = Callable[[BaseHTTPRequestHandler], None]

SECRET = b"correct horse"


class _Watching(logging.Handler):
    """Calls a function at each line of a logger."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self._then = then

    def emit(self, _: logging.LogRecord) -> None:
        self._then()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebhookServer]:
    """A webhook server that no proxy stands before."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with webhook_server() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An owner's store."""
    with open_store(tmp_path / "store.duckdb") as opened:
        yield opened


def test_a_webhook_gets_a_signed_body_once(store: Store, server: WebhookServer) -> None:
    """A receiver must be able to tell that a page is genuine, fresh and not a repetition."""
    add(store, "a-1-webhook")
    clock = clock_at(3)
    deliverer = Deliverer(store, [WebhookReceiver(server.url + "/hook?x=1", SECRET, clock)], clock)
    assert deliverer.deliver_once() == (1, 0, 0)
    assert deliverer.deliver_once() == (0, 0, 0)
    (seen,) = server.seen
    assert seen.path == "/hook?x=1"
    assert json.loads(seen.body) == {"state": "firing", "key": "a-1-webhook"}
    assert seen.headers["Idempotency-Key"] == "a-1-webhook"
    timestamp = seen.headers["Moescope-Timestamp"]
    assert timestamp == str(CREATED_US // 1_000_000 + 3)
    expected = hmac.new(SECRET, timestamp.encode() + b"." + seen.body, hashlib.sha256).hexdigest()
    assert seen.headers["Moescope-Signature"] == f"v1={expected}"
    (row,) = outbox(store)
    assert row["delivered_at"] - row["created_at"] == timedelta(seconds=3)
    assert (row["attempts"], row["last_error"]) == (1, "")


def test_a_failure_is_tried_again_after_a_wait(store: Store, server: WebhookServer) -> None:
    """A server that restarts must still get the page, and not be hammered meanwhile."""
    add(store, "a-1-webhook")
    server.answers = [500]
    clock = clock_at(0)
    deliverer = Deliverer(store, [WebhookReceiver(server.url, None, clock)], clock)
    assert deliverer.deliver_once() == (0, 1, 0)
    (row,) = outbox(store)
    assert (row["attempts"], row["last_error"]) == (1, "HTTP 500: sorry no")
    assert row["not_before"] - row["created_at"] == timedelta(seconds=5)
    clock.sleep(4.9)
    assert deliverer.deliver_once() == (0, 0, 0)
    clock.sleep(0.2)
    assert deliverer.deliver_once() == (1, 0, 0)
    assert [seen.headers["Idempotency-Key"] for seen in server.seen] == ["a-1-webhook"] * 2
    assert "Moescope-Signature" not in server.seen[0].headers


def test_waits_double_up_to_ten_minutes() -> None:
    """Neither a burst of retries nor a day's silence after a short outage."""
    waits = [next_try_us(attempts, 0) // 1_000_000 for attempts in (1, 2, 3, 7, 8, 9, 500)]
    assert waits == [5, 10, 20, 320, 600, 600, 600]


def test_it_gives_up_after_a_day(store: Store, server: WebhookServer) -> None:
    """Yesterday's page is no news; it stays visible as given up."""
    add(store, "a-1-webhook")
    server.answers = [500, 500]
    clock = clock_at(86_399)
    deliverer = Deliverer(store, [WebhookReceiver(server.url, None, clock)], clock)
    assert deliverer.deliver_once() == (0, 1, 0)
    clock.sleep(600)
    assert deliverer.deliver_once() == (0, 1, 1)
    clock.sleep(600)
    assert deliverer.deliver_once() == (0, 0, 0)
    assert outbox(store)[0]["given_up_at"] is not None


def test_a_dead_receiver_costs_one_try_a_round_and_hurts_no_other(
    store: Store, server: WebhookServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A hundred alerts must not wait for a hundred timeouts."""
    add(store, *(f"{alert}-1-webhook" for alert in "abc"))
    add(store, "d-1-log", receiver="log")
    server.answers = [503]
    clock = clock_at(0)
    receivers: list[Receiver] = [WebhookReceiver(server.url, None, clock), LogReceiver()]
    with caplog.at_level(logging.INFO, "moescope.alerts"):
        assert Deliverer(store, receivers, clock).deliver_once() == (1, 1, 0)
    assert len(server.seen) == 1
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert json.loads(record.getMessage())["key"] == "d-1-log"


def test_an_alert_is_told_in_order(store: Store, server: WebhookServer) -> None:
    """An end told before its beginning would leave a receiver with an open incident forever."""
    add(store, "a-10-webhook", "a-9-webhook", alert="a")
    add(store, "b-1-webhook", alert="b")
    server.answers = [500]
    clock = clock_at(0)
    deliverer = Deliverer(store, [WebhookReceiver(server.url, None, clock)], clock)
    deliverer.deliver_once()
    deliverer.deliver_once()
    clock.sleep(6)
    deliverer.deliver_once()
    keys = [seen.headers["Idempotency-Key"] for seen in server.seen]
    assert keys == ["a-9-webhook", "b-1-webhook", "a-9-webhook", "a-10-webhook"]


def test_many_that_wait_hide_none_that_is_due(
    store: Store, server: WebhookServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A webhook that is down for a day must not silence the log, nor its own newer alerts."""
    add(store, *(f"a-{number}-webhook" for number in range(1_100)), alert="a")
    add(store, *(f"b-{number}-webhook" for number in range(1_100)), alert="b")
    add(store, "c-1000000000-webhook", alert="c")
    add(store, "d-1000000000-log", receiver="log", alert="d")
    _put_off(store, "alert = 'a'", 600)
    _put_off(store, "notification = 'b-0-webhook'", 600)
    clock = clock_at(0)
    receivers: list[Receiver] = [WebhookReceiver(server.url, None, clock), LogReceiver()]
    with caplog.at_level(logging.INFO, "moescope.alerts"):
        assert Deliverer(store, receivers, clock).deliver_once() == (2, 0, 0)
    assert [seen.headers["Idempotency-Key"] for seen in server.seen] == ["c-1000000000-webhook"]
    assert [json.loads(record.getMessage())["key"] for record in caplog.records] == [
        "d-1000000000-log"
    ]


def test_receivers_take_turns(
    store: Store, server: WebhookServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What is written last for one receiver comes before another's long backlog."""
    add(store, *(f"a-{number}-webhook" for number in range(150)), alert="a")
    add(store, "b-1000000000-log", receiver="log", alert="b")
    clock = clock_at(0)
    receivers: list[Receiver] = [WebhookReceiver(server.url, None, clock), LogReceiver()]
    seen_before: list[int] = []

    watching = _Watching(lambda: seen_before.append(len(server.seen)))
    logger = logging.getLogger("moescope.alerts")
    logger.addHandler(watching)
    try:
        with caplog.at_level(logging.INFO, "moescope.alerts"):
            Deliverer(store, receivers, clock).deliver_once()
    finally:
        logger.removeHandler(watching)
    assert seen_before in ([0], [1])


def _put_off(store: Store, which: str, seconds: int) -> None:
    store.change(
        lambda connection, commit_id: connection.execute(
            "UPDATE outbox SET not_before = created_at + to_seconds(?), commit_id = ?"
            f" WHERE {which}",
            [seconds, commit_id],
        ),
        author="test",
        action="put off",
        audit=False,
    )


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_refused(server: WebhookServer, status: int) -> None:
    """A redirect could lead a signed page to anybody."""
    server.answers = [status]
    with pytest.raises(DeliveryError) as caught:
        WebhookReceiver(server.url, SECRET, clock_at(0)).send("k", "{}")
    assert caught.value.why == f"HTTP {status}"
    assert len(server.seen) == 1


def test_a_slow_server_is_not_waited_for(server: WebhookServer) -> None:
    """A server that hangs must not hold up the next page."""
    hang = threading.Event()

    def wait(_: BaseHTTPRequestHandler) -> None:
        hang.wait(30)

    server.answers = [wait]
    receiver = WebhookReceiver(server.url, None, clock_at(0), timeout_s=0.2)
    try:
        with pytest.raises(DeliveryError) as caught:
            receiver.send("k", "{}")
    finally:
        hang.set()
    assert caught.value.why == "no answer in time"


def _answer_forever(first: bytes, again: bytes, ended: threading.Event, pause_s: float) -> Answer:
    """Writes without end, always sooner than a timeout of the socket would notice."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        with suppress(OSError):
            handler.wfile.write(first)
            while not ended.wait(pause_s):
                handler.wfile.write(again)

    return answer


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 ", b"2"),
    ],
)
def test_a_server_that_never_ends_its_answer_is_left(
    server: WebhookServer, first: bytes, again: bytes
) -> None:
    """One byte at a time must not hold every other page back, nor pass for a success."""
    ended = threading.Event()
    server.answers = [_answer_forever(first, again, ended, 0.05)]
    receiver = WebhookReceiver(server.url, None, clock_at(0), timeout_s=0.3)
    try:
        with pytest.raises(DeliveryError) as caught:
            receiver.send("k", "{}")
    finally:
        ended.set()
    assert caught.value.why == "no answer in time"


def test_an_error_page_that_never_ends_is_left(server: WebhookServer) -> None:
    """What the server said first is the reason, however slowly it goes on."""
    ended = threading.Event()
    server.answers = [_answer_forever(b"HTTP/1.1 500 No\r\n\r\n", b"x", ended, 0.05)]
    receiver = WebhookReceiver(server.url, None, clock_at(0), timeout_s=0.3)
    try:
        with pytest.raises(DeliveryError, match="HTTP 500"):
            receiver.send("k", "{}")
    finally:
        ended.set()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://a..b/\r\n\r\n",
        b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 500 No\r\nContent-Length: nonsense\r\n\r\nno",
        b"HTTP/1.1 9999 What\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"\x00\xff\r\n",
        b"",
    ],
)
def test_nonsense_is_a_failure_like_any_other(server: WebhookServer, answer: bytes) -> None:
    """What a server answers must not end whoever delivers to all the others."""

    def say(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(answer)

    server.answers = [say]
    with pytest.raises(DeliveryError) as caught:
        WebhookReceiver(server.url, None, clock_at(0)).send("k", "{}")
    assert caught.value.why


def test_a_handshake_that_never_comes_is_a_failure(server: WebhookServer) -> None:
    """A plain server behind an https address is a mistake of the settings, not of the thread."""
    receiver = WebhookReceiver(server.url.replace("http", "https"), None, clock_at(0), timeout_s=5)
    with pytest.raises(DeliveryError) as caught:
        receiver.send("k", "{}")
    assert caught.value.why
    assert server.seen == []


def test_a_long_answer_is_not_read(server: WebhookServer) -> None:
    """An error page of gigabytes must not end up in memory or in the outbox."""

    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(500)
        handler.end_headers()
        handler.wfile.write(b"x" * 1_000_000)

    server.answers = [flood]
    with pytest.raises(DeliveryError) as caught:
        WebhookReceiver(server.url, None, clock_at(0)).send("k", "{}")
    assert caught.value.why == "HTTP 500: " + "x" * 200


def test_nobody_listening_is_a_failure_without_the_address() -> None:
    """Addresses of webhooks are secrets; the reason is exported."""
    receiver = WebhookReceiver("http://127.0.0.1:9/token-1234", None, clock_at(0), timeout_s=2)
    with pytest.raises(DeliveryError) as caught:
        receiver.send("k", "{}")
    assert "token-1234" not in str(caught.value) + repr(receiver)
    assert caught.value.why


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x", "file:///etc/passwd", "host/x", "http://", "https://user:pw@host/",
        "http://host:port/", "http://ho st/", "http://host/\r\nX: y", "javascript:alert(1)",
        "http://a..b/", f"http://{'a' * 64}.org/", "http://[::1", "http://[nonsense]/",
        "http://a%2e%2eb/", "http://host:0/", "http://host:65536/", "http://host%3Aport/",
    ],
)  # fmt: skip
def test_addresses_that_are_none_are_refused(url: str) -> None:
    """A typo has to show when the owner starts, not at the first page."""
    with pytest.raises(SettingsError) as caught:
        WebhookReceiver(url, None, clock_at(0))
    assert "pw" not in str(caught.value).replace("password", "")


@pytest.mark.parametrize(
    "url",
    [
        "http://host", "https://host.example.org:8443/a?b=c#d", "http://[::1]:8080/", "http://a./",
        f"http://{'a' * 63}.org/",
    ],
)  # fmt: skip
def test_addresses_that_can_be_posted_to_are_taken(url: str) -> None:
    """The check must not refuse what works."""
    assert WebhookReceiver(url, None, clock_at(0)).name == "webhook"


def test_receivers_follow_the_settings(tmp_path: Path) -> None:
    """The log always gets alerts; the webhook does if it has an address and a usable secret."""
    secret = tmp_path / "secret"
    environment = {"MOESCOPE_ALERTS_WEBHOOK_URL": "https://host/x"}
    assert receiver_names(load_settings(environment={})) == ("log",)
    settings = load_settings(environment=environment)
    names = tuple(each.name for each in receivers_from(settings, clock_at(0)))
    assert names == receiver_names(settings) == ("log", "webhook")
    environment["MOESCOPE_ALERTS_WEBHOOK_SECRET_FILE"] = str(secret)
    for content in (None, b" \n"):
        if content is not None:
            secret.write_bytes(content)
        with pytest.raises(SettingsError, match="secret file"):
            receivers_from(load_settings(environment=environment), clock_at(0))


def test_a_receiver_that_is_gone_is_said_so(store: Store) -> None:
    """Taking the webhook out of the settings leaves rows that nobody can deliver."""
    add(store, "a-1-webhook")
    assert Deliverer(store, [LogReceiver()], clock_at(0)).deliver_once() == (0, 1, 0)
    assert "no such receiver" in outbox(store)[0]["last_error"]


def test_a_process_killed_between_sending_and_recording_sends_again(
    tmp_path: Path, server: WebhookServer
) -> None:
    """At least once: the second delivery has the same key, so that a receiver can drop it."""
    path = tmp_path / "store.duckdb"
    with open_store(path) as store:
        add(store, "a-1-webhook")
    started = threading.Event()
    pid: list[int] = []

    def kill(_: BaseHTTPRequestHandler) -> None:
        started.wait(60)
        os.kill(pid[0], signal.SIGKILL)

    server.answers = [kill]
    program = Path(__file__).parents[1] / "support" / "outbox_store.py"
    folders = os.pathsep.join(folder for folder in sys.path if folder)
    with subprocess.Popen(
        [sys.executable, str(program), str(path), server.url],
        env={**os.environ, "PYTHONPATH": folders},
    ) as process:
        pid.append(process.pid)
        started.set()
        assert process.wait(100) == -signal.SIGKILL
    clock = clock_at(1)
    with open_store(path) as store:
        assert outbox(store)[0]["attempts"] == 0
        receiver = WebhookReceiver(server.url, None, clock)
        assert Deliverer(store, [receiver], clock).deliver_once() == (1, 0, 0)
    assert [seen.headers["Idempotency-Key"] for seen in server.seen] == ["a-1-webhook"] * 2
    assert server.seen[0].body == server.seen[1].body


def test_the_thread_delivers_and_stops(store: Store, server: WebhookServer) -> None:
    """The owner starts it once and forgets it."""
    arrived = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        arrived.set()

    server.answers = [answer]
    clock = clock_at(0)
    deliverer = Deliverer(store, [WebhookReceiver(server.url, None, clock)], clock, poll_s=0.02)
    deliverer.start()
    try:
        add(store, "a-1-webhook")
        assert arrived.wait(60)
    finally:
        deliverer.stop()
        deliverer.stop()
    assert outbox(store)[0]["delivered_at"] is not None


class _Broken:
    """A receiver with a fault of its own."""

    name = "webhook"

    def send(self, notification: str, body: str) -> None:
        raise ZeroDivisionError(f"{notification} {body}")


def test_a_fault_of_a_receiver_is_its_own(store: Store) -> None:
    """A mistake in one receiver must not keep pages from the others."""
    add(store, "a-1-webhook")
    add(store, "b-1-log", receiver="log", alert="b")
    receivers: list[Receiver] = [_Broken(), LogReceiver()]
    assert Deliverer(store, receivers, clock_at(0)).deliver_once() == (1, 1, 0)
    assert {row["last_error"] for row in outbox(store)} == {"", "ZeroDivisionError"}


def test_the_thread_outlives_a_database_that_fails(
    store: Store, server: WebhookServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the disk has space again, what waited has to go out without a restart."""
    arrived, said = threading.Event(), threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        arrived.set()

    server.answers = [answer]
    add(store, "a-1-webhook")
    _rename(store, "outbox", "elsewhere")
    clock = clock_at(0)
    deliverer = Deliverer(store, [WebhookReceiver(server.url, None, clock)], clock, poll_s=0.02)
    logger, watching = (
        logging.getLogger("moescope.jobs.notifications.deliverer"),
        _Watching(said.set),
    )
    logger.addHandler(watching)
    deliverer.start()
    try:
        assert said.wait(60)
        assert not arrived.is_set()
        _rename(store, "elsewhere", "outbox")
        assert arrived.wait(60)
    finally:
        logger.removeHandler(watching)
        assert deliverer.stop()
    assert outbox(store)[0]["delivered_at"] is not None
    assert all("\n" not in record.getMessage() for record in caplog.records)


def _rename(store: Store, old: str, new: str) -> None:
    store.change(
        lambda connection, _: connection.execute(f"ALTER TABLE {old} RENAME TO {new}"),
        author="test",
        action="rename",
        audit=False,
    )


def test_a_stop_does_not_wait_for_ever(
    store: Store, server: WebhookServer, caplog: pytest.LogCaptureFixture
) -> None:
    """An owner has to end though a notification hangs, and the next one sends it again."""
    arrived, hang = threading.Event(), threading.Event()

    def wait(_: BaseHTTPRequestHandler) -> None:
        arrived.set()
        hang.wait(60)

    server.answers = [wait]
    add(store, "a-1-webhook")
    clock = clock_at(0)
    deliverer = Deliverer(store, [WebhookReceiver(server.url, None, clock)], clock, poll_s=0.02)
    deliverer.start()
    try:
        assert arrived.wait(60)
        assert not deliverer.stop(0.05)
    finally:
        hang.set()
    assert "still on its way" in caplog.text
    assert deliverer.stop(60)
    assert outbox(store)[0]["attempts"] == 0


def test_a_test_notification_says_what_became_of_it(store: Store, server: WebhookServer) -> None:
    """Whoever sets up a webhook wants to know now, and no retry tomorrow."""
    server.answers = [404]
    clock = clock_at(0)
    receivers: list[Receiver] = [LogReceiver(), WebhookReceiver(server.url, SECRET, clock)]
    results = send_test(store, receivers, clock, author="ann", reason="set up")
    assert results == (("log", ""), ("webhook", "HTTP 404: sorry no"))
    body = json.loads(server.seen[0].body)
    assert (body["kind"], body["created_at"]) == ("test", "2026-01-01T00:00:00Z")
    assert Deliverer(store, receivers, clock_at(7_200)).deliver_once() == (0, 0, 0)
    rows = {row["receiver"]: row for row in outbox(store)}
    assert rows["log"]["delivered_at"] is not None
    assert rows["webhook"]["given_up_at"] is not None
    with closing(store.cursor()) as cursor:
        audit = cursor.execute("SELECT author, action, reason FROM audit").fetchall()
    assert audit == [("ann", "alert test", "set up")]
