"""A worker process: reads queries from its standard input, writes results to its standard output.

Started by `process.WorkerProcess` only. It holds no secret, can open no file outside of the data it
serves, cannot write to any file, and ends with the pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import sys
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from moescope.storage.query.errors import (
    QueryError,
    QueryFailedError,
    QueryMemoryError,
    QueryRefusedError,
    QueryTimeoutError,
)
from moescope.storage.query.execute import execute_reading
from moescope.storage.query.limits import (
    QueryLimits,
    allow_cpu_for_one_query,
    forbid_writing,
    limit_process,
)
from moescope.storage.query.protocol import FrameError, frame_prefix, read_frame
from moescope.storage.query.sources import Source, open_source

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_REQUEST_BYTES: Final = 64 << 20
_MEMORY_MESSAGE: Final = re.compile(r"^Out of Memory Error|bad_alloc|bad allocation")


def main() -> None:
    """Serve queries until the parent closes the pipe. Arguments: one JSON object."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    limits = QueryLimits(**options["limits"])
    requests, replies = _private_pipes()
    forbid_writing()
    try:
        source = open_source(options["kind"], options["path"], limits)
        limit_process(limits)
    except QueryError as error:
        _reply(replies, _failure(error), b"")
        return
    _reply(replies, {"ready": True}, b"")
    while True:
        try:
            head, body = read_frame(_reader(requests), max_body_bytes=_MAX_REQUEST_BYTES)
        except (EOFError, FrameError):
            return
        reply, rows = _answer(source, head, body, limits)
        _reply(replies, reply, rows)


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move the pipes away from descriptors 0 and 1, where a library might read or print."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return requests, replies


def _reader(pipe: BinaryIO) -> Callable[[int], bytes]:
    def read_exactly(size: int) -> bytes:
        data = pipe.read(size)
        if len(data) < size:
            raise EOFError
        return data

    return read_exactly


def _reply(pipe: BinaryIO, head: dict[str, Any], body: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.write(frame_prefix(head, len(body)))
        pipe.write(body)
        pipe.flush()


def _answer(
    source: Source, head: dict[str, Any], body: bytes, limits: QueryLimits
) -> tuple[dict[str, Any], bytes]:
    started = time.monotonic()
    allow_cpu_for_one_query(limits)
    try:
        with source.connection() as (connection, origin):
            packed = execute_reading(
                connection,
                head["query"],
                pickle.loads(body) if body else None,  # noqa: S301 (from the parent, by its pipe)
                max_rows=head["rows"],
                max_bytes=head["bytes"],
            )
    except Exception as error:  # noqa: BLE001 (hostile input: whatever it is, the caller gets it)
        return _failure(error), b""
    return {
        "rows": packed.rows,
        "truncated": packed.truncated,
        "seconds": time.monotonic() - started,
        **origin,
    }, packed.arrow


def _failure(error: Exception) -> dict[str, Any]:
    typed = _typed(error)
    return {
        "error": type(typed).__name__,
        "what": typed.what[:4096],
        "why": typed.why[:4096],
        "next_step": typed.next_step[:4096],
    }


def _typed(error: Exception) -> QueryError:
    if isinstance(error, QueryError):
        return error
    # By message: an error while rows are fetched crosses Arrow's C interface and loses its class.
    message = str(error)
    if isinstance(error, MemoryError) or _MEMORY_MESSAGE.search(message):
        return QueryMemoryError(
            "The query needed more memory than it may use.",
            why=message,
            next_step="Filter or aggregate more, or raise sql.memory.",
        )
    if message.startswith("INTERRUPT Error"):
        return QueryTimeoutError(
            "The query ran longer than it may.",
            why=message,
            next_step="Ask for a shorter time range, or raise sql.timeout.",
        )
    if message.startswith("Permission Error") or "transaction is launched in read-only" in message:
        return QueryRefusedError(
            "The query reaches beyond moescope's tables.",
            why=message,
            next_step="Query the tables and views that SHOW TABLES lists.",
        )
    return QueryFailedError(
        "The query failed.", why=message, next_step="DESCRIBE a table to see its columns."
    )


if __name__ == "__main__":
    main()
