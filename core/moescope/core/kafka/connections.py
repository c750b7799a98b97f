"""Why connections fail: the library keeps that to its log, or does not know it."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

from moescope.core.kafka.errors import is_refusal

SURE_AFTER: Final = 3
"""A broker that is killed ends one connection while it checks a password, and not so many."""


class Connections:
    """Makes a client's network part, and remembers how its connections failed.

    Where a broker refuses a password, its answer and the end of the connection often arrive
    together, and the library then tells only of the end. Until a client is open, one that comes
    while a password is checked counts as a refusal, unless a later connection fails otherwise.
    Afterwards the third in a row does, and whoever waits for an answer is told so: a password
    that is revoked while a client works is noticed when it connects again.

    Attributes:
        failure: Of the latest connection that failed otherwise than by a time-out, or that was
            surely refused where any was; None when none failed.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._was_refused = False
        self._ended_checks = 0
        self._made: list[Any] = []
        self._seen: WeakSet[Any] = WeakSet()

    def client(self, **configs: Any) -> Any:
        """For the option `kafka_client` of producers, consumers and admin clients."""
        from kafka.net.compat import KafkaNetClient  # noqa: PLC0415 (loaded with the client)

        made = KafkaNetClient(**configs)
        manager = made._manager  # noqa: SLF001 (nothing public leads to its connections)
        manager.get_connection = functools.partial(self._connect, manager.get_connection)
        self._made.append(made)
        return made

    def close(self) -> None:
        """Let go of what a client that was not opened leaves behind: sockets and a selector."""
        for made in self._made:
            with suppress(Exception):
                made.close()

    def _connect(self, connect: Any, *arguments: Any, **options: Any) -> Any:
        connection = connect(*arguments, **options)
        if connection.init_future.is_done or connection in self._seen:
            return connection
        self._seen.add(connection)
        # There is no other sign of what a connection is at when it ends.
        authenticate = connection._sasl_authenticate  # noqa: SLF001 - nothing public tells
        end = connection.connection_lost
        is_checked = False

        async def check(*arguments: Any, **options: Any) -> None:
            nonlocal is_checked
            is_checked = True
            await authenticate(*arguments, **options)
            is_checked = False

        def ended(error: BaseException | None) -> None:
            is_news = is_checked and not connection.init_future.is_done
            end(self._surely(error) if is_news else error)

        def failed(error: BaseException) -> None:
            self._failed(error, is_checked=is_checked)

        connection._sasl_authenticate = check  # noqa: SLF001 - nothing public tells
        connection.connection_lost = ended
        connection.init_future.add_callback(self._succeeded)
        connection.init_future.add_errback(failed)
        return connection

    def _surely(self, error: BaseException | None) -> BaseException | None:
        """A refusal for a connection that ended while a password was checked, as others had."""
        if not _is_end(error):
            return error
        self._ended_checks += 1
        return _refusal() if self._ended_checks >= SURE_AFTER else error

    def _succeeded(self, _: object) -> None:
        self._ended_checks = 0

    def _failed(self, error: BaseException, *, is_checked: bool) -> None:
        from kafka.errors import KafkaTimeoutError, RequestTimedOutError  # noqa: PLC0415 - loaded with the client

        # The last attempt is cut short where the client's own time ends: that says nothing.
        says_little = isinstance(error, KafkaTimeoutError | RequestTimedOutError)
        if not is_checked:
            self._ended_checks = 0
        if is_refusal(error):
            self._was_refused = True
            self.failure = error
        elif not self._was_refused and not (says_little and self.failure is not None):
            self.failure = _refusal() if is_checked and _is_end(error) else error


def _is_end(error: BaseException | None) -> bool:
    """Whether a connection ended without a word."""
    from kafka.errors import KafkaConnectionError  # noqa: PLC0415 (loaded with the client)

    return error is None or isinstance(error, KafkaConnectionError)


def _refusal() -> BaseException:
    from kafka.errors import SaslAuthenticationFailedError  # noqa: PLC0415 - loaded with the client

    refusal: BaseException = SaslAuthenticationFailedError(
        "The broker ended the connection when it had got the password."
    )
    return refusal
