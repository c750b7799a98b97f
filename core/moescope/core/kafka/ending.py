"""Ending a producer that is given up, with its thread."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

CLOSE_SECONDS: Final = 2.0


def end_producer(producer: Any, seconds: float = CLOSE_SECONDS) -> None:
    """End a client without waiting for what it still wants to send.

    The library's own `close` first waits for every record, and leaves the sending thread at work
    for ever when that takes too long: a broker that returns would get records of a client that
    was given up long ago, between those of its successor.

    Args:
        producer: A `kafka.KafkaProducer`.
        seconds: Longest wait for its thread, and again for what else it closes.
    """
    import kafka.errors  # noqa: PLC0415 (loaded with the client)

    sender = getattr(producer, "_sender", None)
    if sender is not None:
        sender.force_close()
        sender.join(seconds)
    with suppress(kafka.errors.KafkaError):
        producer.close(timeout=seconds)
