"""What can go wrong with a user's query, one class per remedy."""

from __future__ import annotations

from typing import Final

from moescope.core.errors import DependencyUnreachableError, InputError, MoescopeError


class QueryError(MoescopeError):
    """Root of everything that a query can end with instead of rows."""


class QueryRefusedError(QueryError, InputError):
    """The text is not one statement that only reads."""

    exit_code = 2


class QueryFailedError(QueryError, InputError):
    """The statement reads, but the database refused or could not finish it."""

    exit_code = 2


class QueryTooLargeError(QueryError, InputError):
    """The result is larger than its caller accepts."""

    exit_code = 2


class QueryTimeoutError(QueryError, InputError):
    """The query ran, or waited for a worker, longer than it may."""

    exit_code = 2


class QueryMemoryError(QueryError, InputError):
    """The query needed more memory than a worker may have."""

    exit_code = 2


class QuerySourceError(QueryError, DependencyUnreachableError):
    """The data that the query should read cannot be opened now."""

    exit_code = 3


ERROR_BY_NAME: Final[dict[str, type[QueryError]]] = {
    kind.__name__: kind
    for kind in (
        QueryRefusedError,
        QueryFailedError,
        QueryTooLargeError,
        QueryTimeoutError,
        QueryMemoryError,
        QuerySourceError,
    )
}
"""How an error is named on the pipe between a worker and its pool."""
