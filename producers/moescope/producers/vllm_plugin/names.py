"""Request ids as vLLM's clients know them.

The API server makes an engine's id from the one in its answer:

| call | answer's id | engine's id |
|---|---|---|
| completion, prompt p | `cmpl-X` | `cmpl-X-p-` and 8 digits |
| chat | `chatcmpl-X` | `chatcmpl-X-` and 8 digits |
| sample s of several | as above | `s_` before the above |

X is the client's `X-Request-Id`, or random. Read from vLLM 0.32. A client can send thousands of
characters: all of this takes linear time.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

from moescope.producers.ring.facts import is_name

_RANDOM_DIGITS: Final = 8
_HEX: Final = frozenset("0123456789abcdef")
_COMPLETION: Final = "cmpl-"
_READABLE: Final = 64
"""Characters of a long name that stay."""


class RequestName(NamedTuple):
    """What a request is called.

    Attributes:
        request: The answer's id for the first sequence of a call; further prompts have `-p`,
            further samples `#s` behind it.
        call: The answer's id: what all sequences of one call have in common.
    """

    request: str
    call: str


def client_name(engine_id: str) -> RequestName:
    """The client's name of a request; the engine's own where it has none.

    Ids that are mere numbers (of the offline `LLM`) are not unique beyond one process, and keep
    the engine's digits.
    """
    given, dash, digits = engine_id.rpartition("-")
    if not dash or len(digits) != _RANDOM_DIGITS or not _HEX.issuperset(digits):
        return _named(engine_id, engine_id)
    sample, underscore, call = given.partition("_")
    if not underscore or not _is_number(sample) or not call or _is_number(call):
        sample, call = "", given
    if not call or _is_number(call):
        return _named(engine_id, engine_id)
    suffix = ""
    completion, _, prompt = call.rpartition("-")
    if completion.startswith(_COMPLETION) and completion != _COMPLETION and _is_number(prompt):
        call = completion
        if prompt.strip("0"):
            suffix = f"-{prompt}"
    if sample.strip("0"):
        suffix += f"#{sample}"
    return _named(call + suffix, call)


def short_name(name: str) -> str:
    """The name, or where it is too long or no valid Unicode, its head and a digest of all of it."""
    if is_name(name):
        return name
    head = name[:_READABLE].encode(errors="replace").decode()
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{head}…{digest}"


def _named(request: str, call: str) -> RequestName:
    return RequestName(short_name(request), short_name(call))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
