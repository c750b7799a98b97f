"""Why a client could not be opened: the library keeps that to its log."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


class FirstConnections:
    """Makes a client's network part, and remembers how its connections failed.

    Attributes:
        failure: Of the latest connection that failed; None when none did.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._made: list[Any] = []

    def client(self, **configs: Any) -> Any:  # noqa: ANN401 (the library is untyped)
        """For the option `kafka_client` of producers, consumers and admin clients."""
        from kafka.net.compat import KafkaNetClient  # noqa: PLC0415 (loaded with the client)

        made = KafkaNetClient(**configs)
        manager = made._manager  # noqa: SLF001 (nothing public leads to its connections)
        connect = manager.get_connection

        def get_connection(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            connection = connect(*arguments, **options)
            connection.init_future.add_errback(self._failed)
            return connection

        manager.get_connection = get_connection
        self._made.append(made)
        return made

    def close(self) -> None:
        """Let go of what a client that was not opened leaves behind: sockets and a selector."""
        for made in self._made:
            with suppress(Exception):
                made.close()

    def _failed(self, error: BaseException) -> None:
        self.failure = error
