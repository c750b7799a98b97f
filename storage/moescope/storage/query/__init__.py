"""User SQL in worker processes that can read the export, and nothing else."""

from __future__ import annotations

from moescope.storage.query.errors import (
    QueryError,
    QueryFailedError,
    QueryMemoryError,
    QueryRefusedError,
    QuerySourceError,
    QueryTimeoutError,
    QueryTooLargeError,
)
from moescope.storage.query.limits import QueryLimits
from moescope.storage.query.pool import QueryPool
from moescope.storage.query.render import FORMATS, render
from moescope.storage.query.result import QueryResult

__all__ = [
    "FORMATS",
    "QueryError",
    "QueryFailedError",
    "QueryLimits",
    "QueryMemoryError",
    "QueryPool",
    "QueryRefusedError",
    "QueryResult",
    "QuerySourceError",
    "QueryTimeoutError",
    "QueryTooLargeError",
    "render",
]
