"""Notifications as signed HTTP POST requests."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from moescope.core.errors import SettingsError
from moescope.jobs.notifications.deadline import (
    BoundedHTTPHandler,
    BoundedHTTPSHandler,
    Deadline,
)
from moescope.jobs.notifications.errors import DeliveryError

if TYPE_CHECKING:
    from moescope.core.clock import Clock

KEY_HEADER = "Idempotency-Key"
TIMESTAMP_HEADER = "Moescope-Timestamp"
SIGNATURE_HEADER = "Moescope-Signature"
TIMEOUT_S = 10.0
_REASON_BYTES = 200
_LAST_PORT = 65_535
_LATE = "no answer in time"


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """What the signature header holds: HMAC-SHA256 over timestamp, a full stop and body."""
    digest = hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"v1={digest}"


def read_secret(path: str) -> bytes:
    """The content of a secret file without white space around it.

    Raises:
        SettingsError: It cannot be read, or is empty.
    """
    try:
        secret = Path(path).expanduser().read_bytes().strip()
    except OSError as error:
        raise SettingsError(
            f"The secret file {path} cannot be read.",
            why=error.strerror or type(error).__name__,
            next_step="Name a readable file in alerts.webhook_secret_file, or leave it empty.",
        ) from error
    if not secret:
        raise SettingsError(
            f"The secret file {path} is empty.",
            why="An empty secret signs nothing.",
            next_step="Write a secret into it, for example 32 random bytes in base64.",
        )
    return secret


class WebhookReceiver:
    """Posts each notification as JSON.

    Any answer of the 200s is success; its body is not read. Everything else is a failure that
    the outbox tries again, redirects included.

    Args:
        url: `http://` or `https://`, without a user or password in it.
        secret: Signs the body; None: unsigned.
        clock: For the timestamp that is signed along.
        timeout_s: Longest wait for the whole exchange.

    Raises:
        SettingsError: The URL is none that can be posted to.
    """

    name = "webhook"

    def __init__(
        self, url: str, secret: bytes | None, clock: Clock, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._url = _checked(url)
        self._secret = secret
        self._clock = clock
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        """Neither address nor secret: both may be confidential."""
        return "WebhookReceiver()"

    def send(self, notification: str, body: str) -> None:
        """Post one notification.

        Raises:
            DeliveryError: It was not taken.
        """
        data = body.encode()
        timestamp = str(self._clock.now_us() // 1_000_000)
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "moescope",
            KEY_HEADER: notification,
            TIMESTAMP_HEADER: timestamp,
        }
        if self._secret is not None:
            headers[SIGNATURE_HEADER] = signature(self._secret, timestamp, data)
        request = urllib.request.Request(self._url, data, headers, method="POST")  # noqa: S310 (checked)
        with Deadline(self._timeout_s) as deadline:
            try:
                self._exchange(request, deadline)
            except DeliveryError:
                raise
            except Exception as error:  # whatever an answer makes the library raise
                raise _failed(_LATE if deadline.passed else _cause(error)) from error
            if deadline.passed:
                # The end of the connection reads like the end of the headers.
                raise _failed(_LATE)

    def _exchange(self, request: urllib.request.Request, deadline: Deadline) -> None:
        try:
            with _opener(deadline).open(request, timeout=self._timeout_s):
                return
        except urllib.error.HTTPError as error:
            with error:
                raise _failed(_answer(error)) from error
        except urllib.error.URLError as error:
            raise _failed(_LATE if deadline.passed else _cause(error.reason)) from error


def _opener(deadline: Deadline) -> urllib.request.OpenerDirector:
    """Without a handler of redirects: one could lead the body, and its signature, anywhere."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        BoundedHTTPHandler(deadline),
        BoundedHTTPSHandler(deadline),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _checked(url: str) -> str:
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if not is_plain or not _is_reachable(url):
        raise SettingsError(
            "alerts.webhook_url is none that alerts can be posted to.",
            why="It has to be http:// or https:// with a host, and without user and password.",
            next_step="Correct it, or leave it empty; `alerts.webhook_secret_file` signs requests.",
        )
    return url


def _is_reachable(url: str) -> bool:
    """Whether the library can make a connection of it, as far as it can tell without one."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            return False
        host = urllib.request.Request(url).host  # noqa: S310 (checked above)
        target = http.client.HTTPConnection(host)
        if "[" in host:
            ipaddress.IPv6Address(target.host)
        target.host.encode("idna")
        is_port = parts.port != 0 and 0 < target.port <= _LAST_PORT
    except (ValueError, http.client.HTTPException):
        return False
    return is_port


def _failed(why: str) -> DeliveryError:
    return DeliveryError(
        "The webhook did not take a notification.",
        why=why,
        next_step="Check alerts.webhook_url and its server; the notification is tried again.",
    )


def _answer(error: urllib.error.HTTPError) -> str:
    try:
        text = error.read(_REASON_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException):
        text = ""
    shown = "".join(char if char.isprintable() else " " for char in text).strip()
    return f"HTTP {error.code}: {shown}" if shown else f"HTTP {error.code}"


def _cause(error: object) -> str:
    """The kind of failure; messages of the library can hold the address."""
    if isinstance(error, TimeoutError):
        return _LATE
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__ if isinstance(error, BaseException) else "no connection"
