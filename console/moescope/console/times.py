"""Times as people type and read them: ISO 8601, UTC unless they say otherwise."""

from __future__ import annotations

from datetime import UTC, datetime

from moescope.core.errors import InputError


def time_us(text: str) -> int:
    """Microseconds since the epoch.

    Raises:
        InputError: It is no time.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InputError(
            f"{text!r} is not a time.",
            why=str(error),
            next_step="Write for example 2026-11-30T10:00 (UTC) or 2026-11-30T11:00+01:00.",
        ) from error
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    whole = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds


def span_us(text: str) -> tuple[int, int]:
    """A span `FROM/TO`, the end excluded.

    Raises:
        InputError: It is no span.
    """
    begin, slash, end = text.partition("/")
    if not slash:
        raise InputError(f"{text!r} is not a span of time.", next_step="Write FROM/TO.")
    span = time_us(begin), time_us(end)
    if span[0] >= span[1]:
        raise InputError(f"The span {text!r} is empty.", next_step="Write the earlier time first.")
    return span


def shown(moment: object) -> str:
    """A stored time (UTC), or µs since the epoch, to the second; empty for null."""
    if isinstance(moment, int):
        moment = datetime.fromtimestamp(moment / 1e6, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S") if isinstance(moment, datetime) else ""
