"""The views of a worker: tables over the files of the newest manifest, and the declared views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

from moescope.core.tables import TABLE_BY_NAME, VIEWS
from moescope.storage.export.errors import ExportError
from moescope.storage.export.layout import columns_fingerprint, exported_tables, quoted
from moescope.storage.export.manifest import MANIFEST_NAME, Manifest, read_manifest
from moescope.storage.export.views import select_table
from moescope.storage.query.errors import QuerySourceError

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.storage.export.manifest import TableFiles


class ExportViews:
    """Follows the export's manifest with the views of one connection.

    Args:
        connection: Locked down; may read the folder.
        folder: The export folder, absolute.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._stamp: tuple[int, int] | None = None
        self._manifest: Manifest | None = None
        self._shown: dict[str, TableFiles] = {}
        self._checked: set[str] = set()

    def refresh(self) -> Manifest:
        """Bring the views up to the newest manifest.

        Raises:
            QuerySourceError: There is none, or it was written by another version.
        """
        stamp = self._current_stamp()
        if self._manifest is not None and stamp == self._stamp:
            return self._manifest
        try:
            manifest = read_manifest(self._folder)
        except ExportError as error:
            raise QuerySourceError(error.what, why=error.why, next_step=error.next_step) from error
        if manifest is None:
            raise _nothing_exported(self._folder)
        if manifest.columns != columns_fingerprint(exported_tables()):
            raise QuerySourceError(
                "The export has other tables or columns than this version knows.",
                why=f"It was written by moescope {manifest.moescope_version}.",
                next_step="Run the same version as the store's owner.",
            )
        try:
            self._show(manifest)
        except duckdb.Error as error:
            raise QuerySourceError(
                "The export cannot be read.",
                why=str(error),
                next_step="Ask again; if it stays, remove the export folder: it is rebuilt.",
            ) from error
        self._stamp, self._manifest = stamp, manifest
        return manifest

    def _current_stamp(self) -> tuple[int, int]:
        try:
            status = (self._folder / MANIFEST_NAME).stat()
        except OSError as error:
            raise _nothing_exported(self._folder) from error
        return status.st_ino, status.st_mtime_ns

    def _show(self, manifest: Manifest) -> None:
        first = not self._shown
        for table in exported_tables():
            files = manifest.tables[table.name]
            if self._shown.get(table.name) != files:
                self._refuse_links(files)
                self._view(table.name, select_table(TABLE_BY_NAME[table.name], files, self._folder))
                self._shown[table.name] = files
        if first:
            for view in VIEWS:
                self._view(view.name, view.sql)

    def _view(self, name: str, sql: str) -> None:
        self._connection.execute(f"CREATE OR REPLACE VIEW {quoted(name)} AS {sql}")

    def _refuse_links(self, files: TableFiles) -> None:
        """DuckDB compares names with the allowed folder, so a link in it could lead out."""
        root = self._folder.resolve()
        paths = set(files.paths())
        for path in paths - self._checked:
            if not (self._folder / path).resolve().is_relative_to(root):
                raise QuerySourceError(
                    f"The export names a file outside of its folder: {path}.",
                    next_step="Remove the export folder: the store's owner exports again.",
                )
        self._checked |= paths


def _nothing_exported(folder: Path) -> QuerySourceError:
    return QuerySourceError(
        f"Nothing was exported to {folder} yet.",
        next_step="Start the store's owner (`moescope run all`), or wait a second.",
    )
