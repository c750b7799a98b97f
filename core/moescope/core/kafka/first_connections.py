"""Why a client could not be opened: the library keeps that to its log."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from moescope.core.kafka.errors import is_refusal


class FirstConnections:
    """Makes a client's network part, and remembers how its connections failed.

    Where a broker refuses a password, its answer and the end of the connection often arrive
    together, and the library then tells only of the end: one that comes while a password is
    checked counts as a refusal, unless a later connection fails otherwise.

    Attributes:
        failure: Of the latest connection that failed otherwise than by a time-out, or that was
            surely refused where any was; None when none failed.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._was_refused = False
        self._made: list[Any] = []
        self._seen: WeakSet[Any] = WeakSet()

    def client(self, **configs: Any) -> Any:  # noqa: ANN401 (the library is untyped)
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

    def _connect(self, connect: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        connection = connect(*arguments, **options)
        if connection.init_future.is_done or connection in self._seen:
            return connection
        self._seen.add(connection)
        authenticate = connection._sasl_authenticate  # noqa: SLF001 (there is no sign of it)
        is_checked = False

        async def check(*arguments: Any, **options: Any) -> None:  # noqa: ANN401
            nonlocal is_checked
            is_checked = True
            await authenticate(*arguments, **options)
            is_checked = False

        def failed(error: BaseException) -> None:
            self._failed(error, is_checked=is_checked)

        connection._sasl_authenticate = check  # noqa: SLF001
        connection.init_future.add_errback(failed)
        return connection

    def _failed(self, error: BaseException, *, is_checked: bool) -> None:
        from kafka.errors import (  # noqa: PLC0415
            KafkaConnectionError,
            KafkaTimeoutError,
            RequestTimedOutError,
            SaslAuthenticationFailedError,
        )

        # The last attempt is cut short where the client's own time ends: that says nothing.
        says_little = isinstance(error, KafkaTimeoutError | RequestTimedOutError)

        if is_refusal(error):
            self._was_refused = True
            self.failure = error
        elif not self._was_refused and not (says_little and self.failure is not None):
            self.failure = error
            if is_checked and isinstance(error, KafkaConnectionError):
                self.failure = SaslAuthenticationFailedError(
                    "The broker ended the connection when it had got the password."
                )
