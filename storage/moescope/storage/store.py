"""The owner's store: the only writer of the DuckDB file."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Self, TypeVar

import duckdb

from moescope.core.clock import SystemClock
from moescope.core.emission import LIVE_DOMAIN, Emission
from moescope.core.errors import InternalError
from moescope.storage.commit import Commit
from moescope.storage.control import insert_rows, next_number
from moescope.storage.database import open_database
from moescope.storage.errors import FencedError, StoreUnreadableError, StoreWriteError
from moescope.storage.memory import Memory, load_memory
from moescope.storage.progress import (
    read_delta_offsets,
    read_handled_to,
    read_progress,
    write_delta_offsets,
)
from moescope.storage.schema import migrate
from moescope.storage.threshold_rows import read_book
from moescope.storage.transaction import transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from moescope.core.accounts import PartitionProgress
    from moescope.core.clock import Clock
    from moescope.core.emission import CommitHook, Finisher
    from moescope.core.self_metrics import SelfMetrics
    from moescope.core.thresholds import ThresholdBook, ThresholdVersion
    from moescope.storage.shared import WindowShapes

T = TypeVar("T")

DEFAULT_MINIMUM_COVERAGE = 0.9

_OUR_MISTAKES = (
    duckdb.ProgrammingError,
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.NotSupportedError,
)
"""What the database says of wrong statements and values; a retry would not help."""


_THRESHOLD_TABLES = {"threshold_versions", "threshold_activations"}
"""A version's lines, references and rules never change, and come with its row."""
_HOOK_TABLES = {"alerts"}
"""What the hook writes, and may keep in memory."""


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
        book: Kept level with the stored thresholds: filled when the file is opened, and after
            each `change` of them. Whoever judges windows reads the same book.
        hook: Takes part in the transaction of each emission.
        metrics: Told of each transaction.
        log: Told when the file cannot be written, and when it can be again: once each, whoever
            tries meanwhile.

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
        book: ThresholdBook | None = None,
        hook: CommitHook | None = None,
        metrics: SelfMetrics | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._log = log
        self._path = path
        self._finisher = finisher
        self._shapes = shapes
        self._minimum_coverage = minimum_coverage
        self._clock = clock or SystemClock()
        self._book = book
        self._hook = hook
        self._metrics = metrics
        self._versions: Mapping[str, ThresholdVersion] = {}
        # Reentrant, so that a change that asks for a cursor does not wait for itself.
        self._lock = threading.RLock()
        self._memory: Memory | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._fencing_token = 0
        self._trouble = ""
        with self._lock:
            self._open()

    @property
    def fencing_token(self) -> int:
        """Greater than that of every owner before."""
        return self._fencing_token

    @property
    def trouble(self) -> str:
        """Why the last write failed, and what to do about it; empty: it did not."""
        return self._trouble

    def load_progress(self) -> dict[str, PartitionProgress]:
        """Progress of every partition as of the last commit."""
        with self._lock:
            progress = read_progress(self._open())
        self._tell_places(progress.values())
        return progress

    def read_to(self) -> dict[str, int]:
        """Partition of the deltas topic → offset of the first record that is not applied."""
        with self._lock:
            return read_delta_offsets(self._open())

    def handled_to(self) -> dict[str, int]:
        """Partition of the deltas topic → up to where all that ended there is stored."""
        with self._lock:
            return read_handled_to(self._open())

    def read_deltas_from(self, partition: str, offset: int) -> None:
        """Go on with a partition of the deltas topic at an offset, also before the stored one.

        An emission cannot do that: one that goes back was applied before. Whoever calls this says
        that what comes next was not, as in a topic that was made anew.

        Raises:
            StoreWriteError: The file could not be written; nothing was changed.
            FencedError: Another owner took over.
        """
        emission = Emission(progress=(), read_to={partition: offset})
        with self._lock:
            self.change(
                lambda connection, number: write_delta_offsets(connection, emission, {}, number),
                author="",
                action="",
                audit=False,
            )
            self._forget()

    def apply(self, emission: Emission) -> None:
        """Write an emission and everything that follows from it in one transaction.

        Raises:
            EmissionRefusedError: It does not continue what is stored; nothing was written.
            StoreWriteError: The file could not be written; nothing of it was kept, and the same
                emission can be applied again.
            FencedError: Another owner took over.
        """
        with self._lock, self._telling_trouble():
            began = self._clock.monotonic()
            connection = self._open()
            memory = self._memory or load_memory(connection, self._shapes)
            # Until the commit has succeeded, memory and file may disagree.
            self._memory = None
            try:
                with transaction(connection):
                    commit = Commit(
                        connection, memory, self._finisher, self._shapes, self._minimum_coverage
                    )
                    facts = commit.write(emission)
                    if self._hook is not None:
                        self._hook.committing(connection, facts)
                    self._sign(connection, memory.commit_id)
            except duckdb.Error as error:
                self._abandon(connection)
                raise self._explained(error) from error
            except BaseException:
                self._forget()
                raise
            self._memory = memory
            self._measure(self._clock.monotonic() - began)
            self._tell_places(emission.progress)
            if self._hook is not None:
                self._hook.committed(facts)

    def change(
        self,
        change: Callable[[duckdb.DuckDBPyConnection, int], T],
        *,
        author: str,
        action: str,
        subject: str = "",
        reason: str = "",
        detail: Mapping[str, object] = MappingProxyType({}),
        audit: bool = True,
    ) -> T:
        """Change rows on somebody's behalf, in one signed transaction with its `audit` row.

        Args:
            change: Called with the connection, inside the transaction, and the commit's number,
                which every row that it writes has to carry. It must not call this store, except
                for a cursor, which sees what was committed before.
            author: Who: a person's account, or `job:` and a name.
            action: Command, for example `threshold activate`.
            subject: What it changes.
            reason: Why, in words.
            detail: Its arguments; values that JSON does not know are stored as text.
            audit: False for bookkeeping that nobody needs to answer for.

        Returns:
            What `change` returned.

        Raises:
            StoreWriteError: The file could not be written; nothing of it was kept.
            FencedError: Another owner took over.
        """
        with self._lock, self._telling_trouble():
            connection = self._open()
            try:
                with transaction(connection):
                    commit_id = last_commit(connection) + 1
                    result = change(connection, commit_id)
                    if audit:
                        what = (author, action, subject, reason)
                        self._audit(connection, commit_id, what, detail)
                    self._sign(connection, commit_id)
                    touched = _touched(connection, commit_id)
                    read = None
                    if self._book is not None and _THRESHOLD_TABLES & touched:
                        read = read_book(connection, self._versions)
            except duckdb.Error as error:
                self._abandon(connection)
                raise self._explained(error) from error
            if self._memory is not None:
                self._memory.commit_id = commit_id
            if self._book is not None and read is not None:
                self._versions = read[0]
                self._book.replace(*read)
            if self._hook is not None and _HOOK_TABLES & touched:
                self._hook.reset()
            return result

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own for reading in the owner's process; close it after use.

        Raises:
            StoreWriteError: The file had to be opened again, and could not be written.
        """
        with self._lock, self._telling_trouble(writes=False):
            connection = self._open()
            try:
                return connection.cursor()
            except duckdb.Error as error:
                self._abandon(connection)
                raise self._explained(error) from error

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
            self._forget()

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
                if self._book is not None:
                    read = read_book(connection, self._versions)
                    self._versions = read[0]
                    self._book.replace(*read)
            except duckdb.Error as error:
                self._abandon(connection)
                raise self._explained(error) from error
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._forget()
        return self._connection

    @contextmanager
    def _telling_trouble(self, *, writes: bool = True) -> Iterator[None]:
        try:
            yield
        except (StoreWriteError, StoreUnreadableError) as error:
            if not self._trouble and self._log is not None:
                self._log(" ".join(str(error).splitlines()))
            self._trouble = f"{error.what} {error.next_step}"
            raise
        if self._trouble and writes:
            self._trouble = ""
            if self._log is not None:
                self._log(f"the store file {self._path} can be written again")

    def _forget(self) -> None:
        """Drop what is in memory: it may disagree with the file."""
        self._memory = None
        if self._hook is not None:
            self._hook.reset()

    def _measure(self, seconds: float) -> None:
        if self._metrics is not None:
            now = self._clock.now_us() / 1e6
            self._metrics.add("moescope_store_commits_total")
            self._metrics.add("moescope_store_commit_seconds_total", seconds)
            self._metrics.set("moescope_store_last_commit_timestamp_seconds", now)

    def _tell_places(self, progress: Iterable[PartitionProgress]) -> None:
        if self._metrics is None:
            return
        for each in progress:
            # Imports come and go without a bound.
            if each.domain == LIVE_DOMAIN:
                self._metrics.set(
                    "moescope_store_next_offset", each.emitted_to, partition=each.partition
                )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC).replace(tzinfo=None)

    def _audit(
        self,
        connection: duckdb.DuckDBPyConnection,
        commit_id: int,
        what: tuple[str, str, str, str],
        detail: Mapping[str, object],
    ) -> None:
        row = {
            "number": next_number(connection, "audit", "number"),
            "changed_at": self._clock.now_us(),
            **dict(zip(("author", "action", "subject", "reason"), what, strict=True)),
            "detail_json": json.dumps(dict(detail), sort_keys=True, default=str),
        }
        insert_rows(connection, "audit", [row], commit_id)

    def _become_owner(self, connection: duckdb.DuckDBPyConnection) -> int:
        who = [socket.gethostname(), os.getpid(), self._now()]
        with transaction(connection):
            row = connection.execute("SELECT fencing_token, last_commit_id FROM owner").fetchone()
            if row and row[0] == self._fencing_token:
                # Opened again after a failure, and nobody else had it meanwhile.
                return self._fencing_token
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
        self._forget()


def last_commit(connection: duckdb.DuckDBPyConnection) -> int:
    """Number of the newest transaction."""
    row = connection.execute("SELECT last_commit_id FROM owner").fetchone()
    return int(row[0]) if row else 0


def _touched(connection: duckdb.DuckDBPyConnection, commit_id: int) -> set[str]:
    """Which of the tables that somebody holds in memory got rows in a transaction."""
    return {
        table
        for table in sorted(_THRESHOLD_TABLES | _HOOK_TABLES)
        if connection.execute(
            f"SELECT 1 FROM {table} WHERE commit_id = ? LIMIT 1",
            [commit_id],
        ).fetchone()
    }
