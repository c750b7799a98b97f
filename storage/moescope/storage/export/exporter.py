"""The exporter: keeps a folder of Parquet files level with the store."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final, Literal

import duckdb

from moescope.core.tables import TABLES
from moescope.storage.export.changes import (
    TableExport,
    newest_commit,
    offsets,
    removed_before,
)
from moescope.storage.export.errors import ExportError
from moescope.storage.export.files import remove_orphans, remove_retired
from moescope.storage.export.layout import (
    columns_fingerprint,
    exported_tables,
    layout_fingerprint,
)
from moescope.storage.export.manifest import (
    NOTHING_EXPORTED,
    Level,
    Manifest,
    Retired,
    read_manifest,
    sync_folder,
)
from moescope.storage.export.parquet import ParquetWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from moescope.core.clock import Clock
    from moescope.core.tables import Table
    from moescope.storage.export.changes import ReadableStore

_SECOND_US: Final = 1_000_000


class Exporter:
    """Exports a store; safe to call from several threads, one call runs at a time.

    Only one exporter may write to a folder: the one of the store's owner.

    Args:
        store: A DuckDB connection, or anything with a `cursor()`.
        folder: The export folder; created, and cleaned of what a crash left behind.
        clock: Dates the manifests.
        grace_seconds: How long a replaced file stays readable. Must exceed the longest query.
        tables: What to export; the declared tables of queries unless told otherwise.

    Raises:
        ExportError: The folder cannot be used, or its manifest is damaged.
    """

    def __init__(
        self,
        store: ReadableStore,
        folder: Path,
        clock: Clock,
        *,
        grace_seconds: float = 120.0,
        tables: Sequence[Table] | None = None,
    ) -> None:
        self._store = store
        self._folder = folder.resolve()
        self._clock = clock
        self._grace_us = round(grace_seconds * _SECOND_US)
        self._tables = tuple(tables) if tables is not None else exported_tables()
        self._layout = layout_fingerprint(self._tables)
        self._lock = threading.Lock()
        with _export_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._manifest = read_manifest(self._folder)
            remove_orphans(self._folder, self._manifest)
        # What another version wrote is not mixed with new files: everything is written again.
        self._rewrite_due = self._manifest is None or self._manifest.layout != self._layout
        self._check_due = True

    @property
    def manifest(self) -> Manifest | None:
        """The newest manifest that this exporter published or found."""
        return self._manifest

    def export_tail(self) -> bool:
        """Export what was committed since the last call. Cheap; meant for every second.

        Returns:
            Whether there was anything.

        Raises:
            ExportError: Nothing has changed for readers; the next call tries again.
        """
        return self._export(Level.TAIL)

    def compact(self, period: Literal["minute", "hour"]) -> bool:
        """Merge small files; what was committed meanwhile is exported too.

        `minute`: the tails since the last time become one file per hour folder.
        `hour`: every hour that has several files, or with which the store no longer agrees
        (rows erased, pruned or moved), is written again from the store.

        Returns:
            Whether a new manifest was published.

        Raises:
            ExportError: Nothing has changed for readers; the next call tries again.
        """
        return self._export(Level(period))

    def _export(self, level: Level) -> bool:
        with self._lock:
            if self._check_due or self._rewrite_due:
                # The store may be another one than the files came from (restored, rebuilt).
                level = Level.HOUR
            with _export_errors(self._folder), _read_transaction(self._store) as cursor:
                return self._export_in(cursor, level)

    def _export_in(self, cursor: duckdb.DuckDBPyConnection, level: Level) -> bool:
        commit_id = newest_commit(cursor, self._tables)
        old = self._manifest
        if old is not None and level is Level.TAIL and commit_id == old.commit_id:
            return False
        aged = removed_before(cursor, old.commit_id, commit_id) if old is not None else {}
        if aged and level is Level.TAIL:
            # Hours that are written anew hold all commits, so nothing may be in tails.
            level = Level.MINUTE
        new = self._next_manifest(commit_id)
        since = new.minute_commit_id if level is Level.MINUTE or old is None else old.commit_id
        writer = ParquetWriter(cursor, self._folder, new.generation)
        try:
            for table in self._tables:
                TableExport(cursor, writer, table, commit_id).apply(
                    new, level, since, aged.get(table.name)
                )
            if level is not Level.TAIL:
                new.minute_commit_id = commit_id
            new.offsets = offsets(cursor)
            changed = old is None or old.commit_id != commit_id or old.live() != new.live()
            if changed:
                self._publish(new, old, writer)
        finally:
            if self._manifest is not new:
                remove_orphans(self._folder, self._manifest)
        self._check_due = self._rewrite_due = False
        return changed

    def _next_manifest(self, commit_id: int) -> Manifest:
        old = self._manifest
        fresh = Manifest(
            generation=old.generation + 1 if old else 1,
            commit_id=commit_id,
            minute_commit_id=NOTHING_EXPORTED,
            written_at_us=self._clock.now_us(),
            moescope_version=_moescope_version(),
            layout=self._layout,
            columns=columns_fingerprint(exported_tables()),
        )
        if old is None:
            return fresh
        fresh.retired = list(old.retired)
        if not self._rewrite_due:
            fresh.minute_commit_id = old.minute_commit_id
            fresh.tables = old.copy().tables
        return fresh

    def _publish(self, new: Manifest, old: Manifest | None, writer: ParquetWriter) -> None:
        now_us = new.written_at_us
        new.retired = remove_retired(self._folder, new.retired, before_us=now_us - self._grace_us)
        gone = (old.live() if old else set()) - new.live()
        new.retired += [Retired(path, now_us) for path in sorted(gone)]
        writer.make_durable()
        new.publish(self._folder)
        self._manifest = new
        sync_folder(self._folder)


def export_all(store: ReadableStore, folder: Path, clock: Clock) -> Manifest:
    """Export every table, internal ones included, from one read transaction.

    Args:
        store: A DuckDB connection, or anything with a `cursor()`.
        folder: A folder that does not exist yet or is empty.
        clock: Dates the manifest.

    Raises:
        ExportError: The folder holds something, or cannot be written.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ExportError(
            f"The folder {folder} is not empty.",
            why="An export of the whole store is never mixed with other files.",
            next_step="Name a new folder.",
        )
    exporter = Exporter(store, folder, clock, tables=TABLES)
    exporter.export_tail()
    if exporter.manifest is None:
        raise AssertionError("a first export always publishes")
    return exporter.manifest


@contextmanager
def _read_transaction(store: ReadableStore) -> Iterator[duckdb.DuckDBPyConnection]:
    cursor = store.cursor()
    try:
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        yield cursor
    finally:
        cursor.close()


@contextmanager
def _export_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, OSError) as error:
        raise ExportError(
            f"The export to {folder} failed; what readers see is unchanged.",
            why=str(error),
            next_step="Check free space and permissions; the next run tries again.",
        ) from error


def _moescope_version() -> str:
    try:
        return version("moescope")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
