"""One worker process, seen from its pool: start it, ask it, kill it when it takes too long."""

from __future__ import annotations

import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from moescope.storage.query.errors import (
    ERROR_BY_NAME,
    QueryError,
    QueryFailedError,
    QueryMemoryError,
    QuerySourceError,
    QueryTimeoutError,
)
from moescope.storage.query.protocol import FrameError, frame_prefix, read_frame
from moescope.storage.query.result import QueryResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from moescope.storage.query.limits import QueryLimits

_PASSED_ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "TZDIR", "LD_LIBRARY_PATH")
# RLIMIT_AS counts what is reserved, used or not: glibc reserves 64 MiB for each thread, and Arrow's
# default allocator 1 GiB at its first use.
_SPARE_ADDRESS_SPACE: Final = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}
_CHUNK_BYTES: Final = 1 << 20
_STREAM_OVERHEAD_BYTES: Final = 1 << 20


class _DeadlineError(Exception):
    """The worker did not answer in time."""


class WorkerProcess:
    """A worker that serves one source.

    Not thread-safe: a pool lends it to one caller at a time. The constructor returns at once, and
    the first `run` waits until the worker is ready.

    Args:
        kind: `sources.EXPORT` or `sources.FILE`.
        path: The export folder or the store file.
        limits: Limits of the process and of each query.
    """

    def __init__(self, kind: str, path: Path, limits: QueryLimits) -> None:
        self._limits = limits
        self._ready = False
        self.queries = 0
        options = {"kind": kind, "path": str(path.resolve()), "limits": asdict(limits)}
        environment = {name: os.environ[name] for name in _PASSED_ENVIRONMENT if name in os.environ}
        environment |= {"PYTHONPATH": os.pathsep.join(sys.path), **_SPARE_ADDRESS_SPACE}
        self._process = subprocess.Popen(  # noqa: S603 (this interpreter, no shell)
            [sys.executable, "-m", "moescope.storage.query.worker", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            bufsize=0,
        )
        self._requests = cast("BinaryIO", self._process.stdin)
        self._replies = cast("BinaryIO", self._process.stdout)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._replies, selectors.EVENT_READ)

    @property
    def alive(self) -> bool:
        """Whether it can take another query."""
        return not self._replies.closed and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def run(
        self,
        query: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None,
        *,
        max_rows: int,
        max_bytes: int,
    ) -> QueryResult:
        """Run one query; on any error but a clean reply the process is gone afterwards.

        Raises:
            QueryError: As the worker says, or as its end is understood.
        """
        self._await_ready()
        self.queries += 1
        head = {"query": query, "rows": max_rows, "bytes": max_bytes}
        body = b"" if parameters is None else pickle.dumps(parameters)
        deadline = time.monotonic() + self._limits.timeout_seconds + self._limits.grace_seconds
        try:
            self._requests.write(frame_prefix(head, len(body)) + body)
            reply, rows = read_frame(
                self._read_until(deadline), max_body_bytes=max_bytes + _STREAM_OVERHEAD_BYTES
            )
        except _DeadlineError as error:
            self.kill()
            raise QueryTimeoutError(
                f"The query ran longer than {self._limits.timeout_seconds:g} s.",
                why="Its worker was killed.",
                next_step="Ask for a shorter time range, or raise sql.timeout.",
            ) from error
        except (EOFError, OSError, FrameError) as error:
            raise self._explain_end(error) from error
        _raise_reported(reply)
        return QueryResult(
            arrow=rows,
            rows=int(reply["rows"]),
            truncated=bool(reply["truncated"]),
            seconds=float(reply["seconds"]),
            as_of_us=int(reply.get("as_of_us", 0)),
            commit_id=int(reply.get("commit_id", -1)),
        )

    def kill(self) -> None:
        """End the process now and release its pipes. May be called twice."""
        self._process.kill()
        self._process.wait()
        self._selector.close()
        for pipe in (self._requests, self._replies):
            pipe.close()

    def _await_ready(self) -> None:
        if self._ready:
            return
        deadline = time.monotonic() + self._limits.start_seconds
        try:
            reply, _ = read_frame(self._read_until(deadline), max_body_bytes=0)
        except (_DeadlineError, EOFError, OSError, FrameError) as error:
            self.kill()
            raise QuerySourceError(
                "A query worker does not start.",
                why=f"It ended with {self._process.returncode} before it was ready."
                if not isinstance(error, _DeadlineError)
                else f"It was not ready after {self._limits.start_seconds:g} s.",
                next_step="`moescope doctor` checks the installation.",
            ) from error
        if "error" in reply:
            self.kill()
        _raise_reported(reply)
        self._ready = True

    def _read_until(self, deadline: float) -> Callable[[int], bytes]:
        descriptor = self._replies.fileno()

        def read_exactly(size: int) -> bytes:
            data = bytearray()
            while len(data) < size:
                if not self._selector.select(max(0.0, deadline - time.monotonic())):
                    raise _DeadlineError
                chunk = os.read(descriptor, min(size - len(data), _CHUNK_BYTES))
                if not chunk:
                    raise EOFError
                data += chunk
            return bytes(data)

        return read_exactly

    def _explain_end(self, error: Exception) -> QueryError:
        if isinstance(error, FrameError):
            self.kill()
            return QueryFailedError("The query worker answered nonsense.", why=str(error))
        try:
            code = self._process.wait(self._limits.grace_seconds)
        except subprocess.TimeoutExpired:
            code = 0
        self.kill()
        if code == -signal.SIGXCPU:
            return QueryTimeoutError(
                "The query used more processor time than it may.",
                why="The kernel ended its worker.",
                next_step="Ask for a shorter time range, or raise sql.timeout.",
            )
        if code in (-signal.SIGKILL, -signal.SIGABRT):
            return QueryMemoryError(
                "The query's worker was ended from outside, most likely for want of memory.",
                why=f"It ended with {code}.",
                next_step="Filter or aggregate more.",
            )
        return QueryFailedError(
            "The query ended its worker.",
            why=f"The process ended with {code}.",
            next_step="Simplify the query; the next one gets a fresh worker.",
        )


def _raise_reported(reply: dict[str, Any]) -> None:
    if "error" not in reply:
        return
    kind = ERROR_BY_NAME.get(str(reply["error"]), QueryFailedError)
    raise kind(
        str(reply.get("what", "The query failed.")),
        why=str(reply.get("why", "")),
        next_step=str(reply.get("next_step", "")),
    )
