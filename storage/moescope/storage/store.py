"""The owner's store: the only writer of the DuckDB file."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

import duckdb

from moescope.core.clock import SystemClock
from moescope.core.errors import InternalError
from moescope.storage.commit import Commit
from moescope.storage.database import open_database
from moescope.storage.errors import FencedError, StoreWriteError
from moescope.storage.memory import Memory, load_memory
from moescope.storage.progress import read_progress
from moescope.storage.schema import migrate
from moescope.storage.transaction import transaction

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.clock import Clock
    from moescope.core.emission import Emission, Finisher, PartitionProgress
    from moescope.storage.shared import WindowShapes

DEFAULT_MINIMUM_COVERAGE = 0.9

_OUR_MISTAKES = (
    duckdb.ProgrammingError,
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.NotSupportedError,
)
"""What the database says of wrong statements and values; a retry would not help."""


class Store:
    """Opens or creates the store file, brings its schema up to date, and applies emissions.

    One emission is one transaction: its rows, the shared windows that it closes, histograms,
    accounting and offsets become visible together or not at all. What is kept in memory between
    commits is a function of the file, so nothing is lost or counted twice by a crash.

    Args:
        path: The DuckDB file.
        finisher: Metric values of closed shared windows.
        shapes: Declared time and step windows.
        minimum_coverage: Windows below it are `insufficient` for that reason.
        clock: For the times in bookkeeping rows; windows never depend on it.

    Raises:
        StoreInUseError: Another process owns the file.
        StoreUnreadableError: The file cannot be read.
        SchemaTooNewError: A newer moescope has opened the file.
    """

    def __init__(
        self,
        path: Path,
        finisher: Finisher,
        shapes: WindowShapes,
        *,
        minimum_coverage: float = DEFAULT_MINIMUM_COVERAGE,
        clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._finisher = finisher
        self._shapes = shapes
        self._minimum_coverage = minimum_coverage
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._memory: Memory | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._fencing_token = 0
        with self._lock:
            self._open()

    @property
    def fencing_token(self) -> int:
        """Greater than that of every owner before."""
        return self._fencing_token

    def load_progress(self) -> dict[str, PartitionProgress]:
        """Progress of every partition as of the last commit."""
        with self._lock:
            return read_progress(self._open())

    def apply(self, emission: Emission) -> None:
        """Write an emission and everything that follows from it in one transaction.

        Raises:
            EmissionRefusedError: It does not continue what is stored; nothing was written.
            StoreWriteError: The file could not be written; nothing of it was kept, and the same
                emission can be applied again.
            FencedError: Another owner took over.
        """
        with self._lock:
            connection = self._open()
            memory = self._memory or load_memory(connection, self._shapes)
            # Until the commit has succeeded, memory and file may disagree.
            self._memory = None
            try:
                with transaction(connection):
                    commit = Commit(
                        connection, memory, self._finisher, self._shapes, self._minimum_coverage
                    )
                    commit.write(emission)
                    self._sign(connection, memory.commit_id)
            except duckdb.Error as error:
                self._abandon(connection)
                raise self._explained(error) from error
            self._memory = memory

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own for reading in the owner's process; close it after use."""
        with self._lock:
            return self._open().cursor()

    def checkpoint(self) -> None:
        """Write the log of changes into the file; commits wait meanwhile (up to 2 s)."""
        with self._lock:
            self._open().execute("CHECKPOINT")

    def close(self) -> None:
        """Close the file. May be called twice."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            self._memory = None

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _open(self) -> duckdb.DuckDBPyConnection:
        """The commit connection; opened again after a failure that broke the database."""
        if self._connection is None:
            connection = open_database(self._path)
            try:
                migrate(connection, self._clock)
                self._fencing_token = self._become_owner(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _become_owner(self, connection: duckdb.DuckDBPyConnection) -> int:
        now = datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC).replace(tzinfo=None)
        who = [socket.gethostname(), os.getpid(), now]
        with transaction(connection):
            row = connection.execute("SELECT fencing_token, last_commit_id FROM owner").fetchone()
            token, commit_id = (row[0] + 1, row[1]) if row else (1, 0)
            connection.execute("DELETE FROM owner")
            connection.execute("INSERT INTO owner VALUES (?, ?, ?, ?, ?)", [token, *who, commit_id])
        return int(token)

    def _sign(self, connection: duckdb.DuckDBPyConnection, commit_id: int) -> None:
        row = connection.execute(
            "UPDATE owner SET last_commit_id = ? WHERE fencing_token = ? RETURNING fencing_token",
            [commit_id, self._fencing_token],
        ).fetchone()
        if row is None:
            raise FencedError(
                f"Another owner has taken over the store file {self._path}.",
                why="The fencing token in the file is not this process's.",
                next_step="Stop this owner.",
            )

    def _explained(self, error: duckdb.Error) -> StoreWriteError | InternalError:
        why = str(error).splitlines()[0]
        if isinstance(error, _OUR_MISTAKES):
            return InternalError(
                f"A commit does not fit the tables of {self._path}; nothing of it was kept.",
                why=why,
                next_step="Report it, with the message above.",
            )
        return StoreWriteError(
            f"The store file {self._path} could not be written; nothing of the commit was kept.",
            why=why,
            next_step="Check free space and permissions, then apply the commit again.",
        )

    def _abandon(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Close a connection that failed; the next call opens the file again."""
        with suppress(duckdb.Error):
            connection.close()
        self._connection = None
