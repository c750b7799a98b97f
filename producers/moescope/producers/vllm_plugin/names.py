"""Request ids as vLLM's clients know them.

The API server makes an engine's id from the one in its answer:

| call | answer's id | engine's id |
|---|---|---|
| completion, prompt p | `cmpl-X` | `cmpl-X-p-` and 8 digits |
| chat | `chatcmpl-X` | `chatcmpl-X-` and 8 digits |
| sample s of several | as above | `s_` before the above |

X is the client's `X-Request-Id`, or random. Read from vLLM 0.32.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_ENGINE_ID: Final = re.compile(
    r"(?:(?P<sample>\d+)_)?(?P<given>.*[^\d].*)-[0-9a-f]{8}", re.DOTALL | re.ASCII
)
_COMPLETION: Final = re.compile(r"(?P<call>cmpl-.+)-(?P<prompt>\d+)", re.DOTALL | re.ASCII)


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
    found = _ENGINE_ID.fullmatch(engine_id)
    if found is None:
        return RequestName(engine_id, engine_id)
    call, suffix = found["given"], ""
    completion = _COMPLETION.fullmatch(call)
    if completion is not None:
        call = completion["call"]
        if int(completion["prompt"]):
            suffix = f"-{completion['prompt']}"
    if found["sample"] is not None and int(found["sample"]):
        suffix += f"#{found['sample']}"
    return RequestName(call + suffix, call)
