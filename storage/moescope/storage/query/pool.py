"""A few warm workers, lent to one query each, replaced when they end or have served enough."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

from moescope.storage.query.errors import (
    QueryMemoryError,
    QueryRefusedError,
    QuerySourceError,
    QueryTimeoutError,
    QueryTooLargeError,
)
from moescope.storage.query.limits import QueryLimits
from moescope.storage.query.process import WorkerProcess
from moescope.storage.query.sources import EXPORT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from moescope.storage.query.result import QueryResult


class QueryPool:
    """Runs user SQL in worker processes; safe to use from several threads.

    Args:
        path: The export folder, or the store file when `kind` is `sources.FILE`.
        workers: How many queries run at a time; others wait their turn.
        limits: Limits of each query.
        kind: What `path` is.

    Raises:
        ValueError: Fewer than one worker.
    """

    def __init__(
        self,
        path: Path,
        workers: int = 2,
        limits: QueryLimits | None = None,
        *,
        kind: str = EXPORT,
    ) -> None:
        if workers < 1:
            raise ValueError("a pool needs at least one worker")
        self._path = path
        self._kind = kind
        self._limits = limits or QueryLimits()
        self._free = threading.Condition()
        self._slots = workers
        self._closed = False
        self._idle = [self._start()]

    def run(
        self,
        query: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        on_overflow: Literal["truncate", "error"] = "truncate",
    ) -> QueryResult:
        """Run one query.

        Args:
            query: One statement that only reads.
            parameters: Values for `$1`, `?` (a sequence) or `$name` (a mapping).
            max_rows: Below the limits' `result_rows`.
            max_bytes: Below the limits' `result_bytes`.
            on_overflow: What happens with a larger result: it is cut and says so, or an error.

        Raises:
            QueryRefusedError: The text is not one statement that only reads.
            QueryFailedError: The database reports an error in it.
            QueryTimeoutError: It ran, or waited for a worker, too long.
            QueryMemoryError: It needed too much memory.
            QueryTooLargeError: The result is larger than allowed and `on_overflow` is `error`.
            QuerySourceError: The data cannot be opened now, or the pool is closed.
        """
        self._check_text(query)
        limits = self._limits
        with self._lent_worker() as worker:
            result = worker.run(
                query,
                parameters,
                max_rows=limits.result_rows if max_rows is None else max_rows,
                max_bytes=limits.result_bytes if max_bytes is None else max_bytes,
            )
        if result.truncated and on_overflow == "error":
            raise QueryTooLargeError(
                f"The result has more than the {result.rows} rows that fit.",
                why=f"A result holds at most {limits.result_rows} rows and"
                f" {limits.result_bytes} bytes.",
                next_step="Aggregate, select fewer columns, or add LIMIT.",
            )
        return result

    @property
    def free_workers(self) -> int:
        """How many more queries could start now."""
        with self._free:
            return self._slots

    def close(self) -> None:
        """End the workers; queries in flight end with an error. May be called twice."""
        with self._free:
            self._closed = True
            idle, self._idle = self._idle, []
            self._free.notify_all()
        for worker in idle:
            worker.kill()

    def __enter__(self) -> Self:
        """The pool itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _start(self) -> WorkerProcess:
        return WorkerProcess(self._kind, self._path, self._limits)

    def _check_text(self, query: str) -> None:
        try:
            size = len(query.encode())
        except UnicodeEncodeError as error:
            raise QueryRefusedError("The query is not valid Unicode text.") from error
        if size > self._limits.query_bytes:
            raise QueryRefusedError(
                f"The query has {size} bytes; at most {self._limits.query_bytes} are accepted.",
                next_step="Pass long lists as parameters.",
            )

    @contextmanager
    def _lent_worker(self) -> Iterator[WorkerProcess]:
        worker = self._take()
        try:
            yield worker
        except QueryMemoryError:
            # Its address space is full of holes by now; the next query deserves a whole one.
            worker.kill()
            raise
        finally:
            self._give_back(worker)

    def _take(self) -> WorkerProcess:
        deadline = time.monotonic() + self._limits.timeout_seconds
        with self._free:
            while not self._closed and self._slots == 0:
                if not self._free.wait(max(0.0, deadline - time.monotonic())):
                    raise QueryTimeoutError(
                        "No query worker became free in time.",
                        why="All of them run other queries.",
                        next_step="Ask again later.",
                    )
            if self._closed:
                raise QuerySourceError("The query pool is closed.")
            self._slots -= 1
            worker = self._idle.pop() if self._idle else None
        if worker is not None and worker.alive:
            return worker
        if worker is not None:
            worker.kill()
        try:
            return self._start()
        except OSError as error:
            with self._free:
                self._slots += 1
                self._free.notify()
            raise QuerySourceError(
                "A query worker cannot be started.", why=str(error), next_step="Ask again later."
            ) from error

    def _give_back(self, worker: WorkerProcess) -> None:
        worn = worker.queries >= self._limits.queries_per_worker
        if worn or not worker.alive:
            worker.kill()
            replacement = self._replacement()
        else:
            replacement = worker
        with self._free:
            self._slots += 1
            keep = replacement is not None and not self._closed
            if replacement is not None and keep:
                self._idle.append(replacement)
            self._free.notify()
        if replacement is not None and not keep:
            replacement.kill()

    def _replacement(self) -> WorkerProcess | None:
        """A new worker that warms up while nobody waits; the next query starts one otherwise."""
        try:
            return None if self._closed else self._start()
        except OSError:
            return None
