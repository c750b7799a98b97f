"""Where a worker's rows come from: the Parquet export, or the store file when nobody owns it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import duckdb

from moescope.storage.query.errors import QuerySourceError
from moescope.storage.query.export_views import ExportViews

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from moescope.storage.query.limits import QueryLimits

EXPORT: Final = "export"
FILE: Final = "file"


class Source(Protocol):
    """Something that lends a locked-down connection for one query."""

    def connection(
        self,
    ) -> AbstractContextManager[tuple[duckdb.DuckDBPyConnection, dict[str, Any]]]:
        """The connection, and what the reply says about the data's origin."""
        ...


def open_source(kind: str, path: str, limits: QueryLimits) -> Source:
    """Open the source that a worker serves.

    Args:
        kind: `EXPORT` (path is the export folder) or `FILE` (path is the store file).
        path: Absolute path.
        limits: What its queries may use.

    Raises:
        QuerySourceError: It cannot be opened now.
    """
    return ExportSource(Path(path), limits) if kind == EXPORT else FileSource(Path(path), limits)


class ExportSource:
    """One in-memory database whose views follow the export's manifest."""

    def __init__(self, folder: Path, limits: QueryLimits) -> None:
        self._connection = duckdb.connect(config={"python_enable_replacements": False})
        _lock_down(self._connection, limits, readable_folder=folder)
        self._views = ExportViews(self._connection, folder)
        self._views.refresh()

    @contextmanager
    def connection(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, dict[str, Any]]]:
        """The connection, its views brought up to the newest manifest."""
        manifest = self._views.refresh()
        yield (
            self._connection,
            {"as_of_us": manifest.written_at_us, "commit_id": manifest.commit_id},
        )


class FileSource:
    """The store file, opened read-only for each query so that an owner can start at any time."""

    def __init__(self, path: Path, limits: QueryLimits) -> None:
        self._path = path
        self._limits = limits
        # Loads and maps what a database needs before the process's memory is limited.
        self._warm = duckdb.connect()
        self._warm.execute("select 1")

    @contextmanager
    def connection(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, dict[str, Any]]]:
        """A fresh read-only connection, closed after use."""
        try:
            connection = duckdb.connect(
                str(self._path), read_only=True, config={"python_enable_replacements": False}
            )
        except duckdb.Error as error:
            raise QuerySourceError(
                f"The store file {self._path} cannot be opened.",
                why=str(error),
                next_step="If an owner has just started, ask again: its export is read then.",
            ) from error
        try:
            _lock_down(connection, self._limits, readable_folder=None)
            yield connection, {}
        finally:
            connection.close()


def _lock_down(
    connection: duckdb.DuckDBPyConnection, limits: QueryLimits, *, readable_folder: Path | None
) -> None:
    settings: dict[str, object] = {
        "threads": limits.threads,
        "memory_limit": f"{limits.database_memory_bytes}B",
        "max_execution_time": max(1, round(limits.timeout_seconds * 1000)),
        "temp_directory": "",
        "TimeZone": "UTC",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "allow_persistent_secrets": False,
        "secret_directory": "",
        "enable_external_access": False,
        "lock_configuration": True,
    }
    if readable_folder is not None:
        connection.execute("set parquet_metadata_cache = true")
        directory = f"{readable_folder}/".replace("'", "''")
        connection.execute(f"set allowed_directories = ['{directory}']")
    for name, value in settings.items():
        text = f"'{value}'" if isinstance(value, str) else str(value).lower()
        connection.execute(f"set {name} = {text}")
