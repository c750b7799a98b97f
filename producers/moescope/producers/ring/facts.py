"""What a frame says about a request, in full each time, so that no lost frame takes it along."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

UNKNOWN_LENGTH: Final = -1
MAX_NAME_BYTES: Final = 512
"""Of a request id, task or scene, in UTF-8."""
NO_NAME: Final = f"the {{}} is no text of at most {MAX_NAME_BYTES} bytes"

_LENGTHS: Final = struct.Struct("<HHHHii")
MAX_FACTS_BYTES: Final = _LENGTHS.size + 3 * MAX_NAME_BYTES


class RequestFacts(NamedTuple):
    """A request as its rows see it.

    Attributes:
        prompt_tokens: Position at which decode starts, or `UNKNOWN_LENGTH`.
        cached_tokens: Positions below it came from a prefix cache.
    """

    request: str
    task: str
    scene: str
    prompt_tokens: int = UNKNOWN_LENGTH
    cached_tokens: int = 0


def is_name(value: object) -> bool:
    """Whether a request id, task or scene can be stored: short text, valid Unicode."""
    if not isinstance(value, str):
        return False
    try:
        return len(value.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


def pack_facts(facts: RequestFacts) -> bytes:
    """The facts as bytes; names are at most `MAX_NAME_BYTES` long."""
    names = [name.encode() for name in facts[:3]]
    lengths = (len(name) for name in names)
    return _LENGTHS.pack(*lengths, 0, facts.prompt_tokens, facts.cached_tokens) + b"".join(names)


@lru_cache(maxsize=256)
def unpack_facts(packed: bytes) -> tuple[RequestFacts, ...]:
    """The facts of several requests in a row.

    Frame after frame of a decoding engine has the same ones: answers are remembered.
    """
    at = 0
    unpacked = []
    while at < len(packed):
        *lengths, _, prompt_tokens, cached_tokens = _LENGTHS.unpack_from(packed, at)
        at += _LENGTHS.size
        names = []
        for length in lengths:
            names.append(packed[at : at + length].decode())
            at += length
        unpacked.append(RequestFacts(names[0], names[1], names[2], prompt_tokens, cached_tokens))
    return tuple(unpacked)
