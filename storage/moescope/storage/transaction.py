"""One transaction, rolled back on any error."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import duckdb

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Commit at the end of the block; an error rolls back and goes on."""
    connection.begin()
    try:
        yield
        connection.commit()
    except BaseException:
        # A commit that failed has ended the transaction, and a broken database refuses.
        with suppress(duckdb.Error):
            connection.rollback()
        raise
