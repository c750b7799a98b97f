"""JSON from strangers: parsed within limits, its values checked, with a reason when refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from reprlib import Repr
from typing import Any

from moescope.core.vocabulary import MAX_EXPERTS
from moescope.producers.importers.errors import RejectedLineError

TIME_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
_LATEST_US = 2**53
_LARGEST_IN_ANY_UNIT = 2**70
_ABSENT = object()
_LONGEST_SHOWN = 80
_SHORT = Repr()
"""Does not follow lists within lists to their end, of which there may be too many for `repr`."""
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 6 * _LONGEST_SHOWN
_SHORT.maxlist = _SHORT.maxdict = _LONGEST_SHOWN
_SHORT.maxlevel = 4


def parse_json(text: bytes) -> Any:
    """Parse one JSON value.

    Raises:
        RejectedLineError: It is none, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RejectedLineError("no JSON", str(error)[:200]) from error


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse one JSON object.

    Raises:
        RejectedLineError: It is something else.
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise RejectedLineError("no JSON object", f"a {type(value).__name__}")
    return value


def look_up(record: dict[str, Any], name: str) -> Any:
    """A field of a record, or a dotted path into it; None when absent or null."""
    value: Any = record.get(name, _ABSENT)
    if value is _ABSENT:
        value = record
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    return value


def as_integer(value: Any, name: str, largest: int) -> int:
    """An integer from 0 to a bound.

    Raises:
        RejectedLineError: The value is something else.
    """
    if type(value) is not int or not 0 <= value <= largest:
        raise RejectedLineError(f"{name} is no integer from 0 to {largest}", shown(value))
    return value


_LARGEST_NUMBER_NAME = 10**30


def as_name(value: Any, name: str) -> str:
    """A name; numbers are written out.

    Raises:
        RejectedLineError: The value is neither text nor a whole number, or too long.
    """
    if type(value) is int and abs(value) < _LARGEST_NUMBER_NAME:
        return str(value)
    if not isinstance(value, str) or not value:
        raise RejectedLineError(f"{name} is no name", shown(value))
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise RejectedLineError(f"{name} is no valid Unicode", shown(value)) from None
    if len(encoded) > 1024:  # noqa: PLR2004 (generous; a batch accepts 4,096 bytes)
        raise RejectedLineError(f"{name} is longer than 1024 bytes", shown(value))
    return value


def as_time_us(value: Any, unit: str) -> int:
    """Microseconds since the Unix epoch from a number in a unit, or from ISO 8601 text (UTC).

    Raises:
        RejectedLineError: The value is no time since 1970.
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise RejectedLineError("time is no ISO 8601 time", shown(value)) from None
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        passed = zoned - datetime(1970, 1, 1, tzinfo=UTC)
        micros = passed.days * 86_400_000_000 + passed.seconds * 1_000_000 + passed.microseconds
    elif type(value) is int and unit == "us":
        micros = value
    elif type(value) in {int, float} and abs(value) < _LARGEST_IN_ANY_UNIT:
        micros = round(value * TIME_UNITS[unit])
    else:
        raise RejectedLineError("time is no time", shown(value))
    if not 0 <= micros < _LATEST_US:
        raise RejectedLineError("time is out of range", shown(value))
    return micros


def as_expert_ids(value: Any) -> list[int]:
    """The expert ids of one token at one layer.

    Raises:
        RejectedLineError: The value is no list of ids from 0 to 65,535.
    """
    if not isinstance(value, list) or not value:
        raise RejectedLineError("experts are no list of ids", shown(value))
    for item in value:
        if type(item) is not int:
            raise RejectedLineError("experts are no list of ids", shown(value))
        if not 0 <= item <= MAX_EXPERTS:
            raise RejectedLineError(f"an id is not 0 to {MAX_EXPERTS}", shown(value))
    return value


def as_weights(value: Any, count: int) -> list[float]:
    """As many weights as there are ids.

    Raises:
        RejectedLineError: The value is no list of that many finite numbers from 0.
    """
    if not isinstance(value, list) or len(value) != count:
        raise RejectedLineError("weights do not match the experts", shown(value))
    for item in value:
        if type(item) not in {int, float} or not 0 <= item < 3e38:  # noqa: PLR2004 (float32)
            raise RejectedLineError("a weight is no number from 0", shown(value))
    return value


def shown(value: object) -> str:
    """The beginning of a value, on one line; never deeper or longer than a person reads."""
    text = _SHORT.repr(value[:_LONGEST_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
