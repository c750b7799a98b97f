"""Clients of the broker for one command: opened, closed, and their errors in words."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moescope.core.kafka import explain, open_admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moescope.core.settings import Settings


@contextmanager
def explained_errors(settings: Settings, doing: str) -> Iterator[None]:
    """Raise what the Kafka client raises as errors that say what to do.

    Raises:
        MoescopeError: Instead of one of the library's.
    """
    from kafka.errors import KafkaError

    try:
        yield
    except KafkaError as error:
        raise explain(error, doing, settings) from error


@contextmanager
def opened_admin(settings: Settings, doing: str) -> Iterator[Any]:
    """An admin client.

    Raises:
        BrokerUnreachableError: Nobody answers.
        BrokerRefusedError: Who we are, or what is done with it, is not accepted.
    """
    admin = open_admin(settings)
    try:
        with explained_errors(settings, doing):
            yield admin
    finally:
        admin.close()
