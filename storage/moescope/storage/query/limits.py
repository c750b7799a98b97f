"""What a query may use, and how a worker process ties its own hands."""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moescope.core.settings import Settings

_MIB = 1 << 20
_PAGE_BYTES = resource.getpagesize()
_SAFETY_CPU_SECONDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """Limits of one query and of the worker that runs it.

    Attributes:
        timeout_seconds: Longest run of one query.
        grace_seconds: How much later than `timeout_seconds` a worker that did not stop by itself
            is killed.
        memory_bytes: Memory that a worker may map beyond what it holds when it is ready.
        result_rows: Most rows of a result.
        result_bytes: Most bytes of a result as an Arrow IPC stream.
        query_bytes: Longest query text in UTF-8.
        threads: Threads per worker; CPU time is limited to `timeout_seconds` times this.
        open_files: Most open file descriptors of a worker.
        queries_per_worker: A worker is replaced after that many queries.
        start_seconds: Longest time that a new worker may take to become ready.
        niceness: Added to the owner's niceness, so that commits go first.
    """

    timeout_seconds: float = 30.0
    grace_seconds: float = 2.0
    memory_bytes: int = 1536 * _MIB
    result_rows: int = 1_000_000
    result_bytes: int = 256 * _MIB
    query_bytes: int = 256 * 1024
    threads: int = 2
    open_files: int = 4096
    queries_per_worker: int = 1000
    start_seconds: float = 60.0
    niceness: int = 5

    @classmethod
    def from_settings(cls, settings: Settings) -> QueryLimits:
        """Limits as `sql.timeout` and `sql.memory` set them."""
        return cls(
            timeout_seconds=settings["sql.timeout"], memory_bytes=settings["sql.memory"] * _MIB
        )

    @property
    def database_memory_bytes(self) -> int:
        """What DuckDB may use of `memory_bytes`; the rest is for the result and the interpreter."""
        return max(32 * _MIB, self.memory_bytes * 5 // 8)


def forbid_writing() -> None:
    """Make every write to a file fail in this process, for good.

    Pipes keep working, reads too. Without it `COPY … TO` inside an allowed directory succeeds.
    """
    # The default action of SIGXFSZ would end the process; ignored, the write fails with EFBIG.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_process(limits: QueryLimits) -> None:
    """Apply the limits that hold for a worker's whole life. Call it when everything is loaded."""
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    # Relative to what is mapped already: DuckDB reserves address space that it never touches.
    _lower(resource.RLIMIT_AS, _mapped_bytes() + limits.memory_bytes)
    if limits.niceness:
        os.nice(limits.niceness)


def allow_cpu_for_one_query(limits: QueryLimits) -> None:
    """Let this process use the CPU time of one more query; the kernel ends it (SIGXCPU) beyond."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    budget = limits.timeout_seconds * limits.threads + _SAFETY_CPU_SECONDS
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(usage.ru_utime + usage.ru_stime + budget) + 1
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _mapped_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    return int(pages) * _PAGE_BYTES
