"""Frames on the pipe between a pool and a worker: a small JSON head, then bytes.

A worker runs hostile SQL, so its parent only ever parses JSON of bounded size from it, and passes
the body on unread. In the other direction the parent may send any picklable parameters.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PREFIX: Final = struct.Struct("<IQ")
MAX_HEAD_BYTES: Final = 4 << 20


class FrameError(Exception):
    """The other side sent something that is no frame, or closed the pipe inside one."""


def frame_prefix(head: dict[str, Any], body_bytes: int) -> bytes:
    """What precedes the body: both lengths, and the head as JSON."""
    text = json.dumps(head).encode()
    return _PREFIX.pack(len(text), body_bytes) + text


def read_frame(
    read_exactly: Callable[[int], bytes], *, max_body_bytes: int
) -> tuple[dict[str, Any], bytes]:
    """Read one frame.

    Args:
        read_exactly: Returns that many bytes or raises.
        max_body_bytes: A longer body is refused before it is read.

    Raises:
        FrameError: Lengths beyond the limits, or a head that is no JSON object.
    """
    head_bytes, body_bytes = _PREFIX.unpack(read_exactly(_PREFIX.size))
    if head_bytes > MAX_HEAD_BYTES or body_bytes > max_body_bytes:
        raise FrameError(f"lengths {head_bytes} and {body_bytes} are beyond the limits")
    try:
        head = json.loads(read_exactly(head_bytes))
    except ValueError as error:
        raise FrameError("the head is not JSON") from error
    if not isinstance(head, dict):
        raise FrameError("the head is no object")
    return head, read_exactly(body_bytes)
