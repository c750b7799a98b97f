"""`connect()`: SQL over windows from Python, whether an owner runs or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from moescope.core.settings import load_settings
from moescope.storage.export.manifest import MANIFEST_NAME
from moescope.storage.places import STORE_FILE, export_folder, store_file
from moescope.storage.query.errors import QuerySourceError
from moescope.storage.query.limits import QueryLimits
from moescope.storage.query.pool import QueryPool
from moescope.storage.query.sources import EXPORT, FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from moescope.storage.query.result import QueryResult

_ATTEMPTS: Final = 3


def connect(
    path: str | Path | None = None,
    *,
    limits: QueryLimits | None = None,
) -> Connection:
    """Connect to moescope's tables.

    Args:
        path: A data directory, a store file, or an export folder (anywhere: a copy will do). By
            default the data directory of the settings (`MOESCOPE_DATA_DIRECTORY`).
        limits: Time, memory and result size; by default as the settings say.

    Returns:
        A connection; use it in a `with` block, or `close()` it.

    Raises:
        QuerySourceError: There is neither a store file nor an export.
        SettingsError: A setting has a value that is not accepted.
    """
    settings = load_settings()
    place = Path(path) if path is not None else settings.data_directory
    return Connection(place.expanduser(), limits or QueryLimits.from_settings(settings))


class Connection:
    """Runs queries in a worker process: they can read moescope's tables, and do nothing else.

    The running owner's export is read (about a second old); without an owner, the store file. Each
    query looks anew, so an owner may start or stop between two of them.

    Args:
        place: Data directory, store file or export folder.
        limits: Of each query.
    """

    def __init__(self, place: Path, limits: QueryLimits) -> None:
        self._file, self._export = _parts(place)
        self._place = place
        self._limits = limits
        self._pools: dict[str, QueryPool] = {}
        if not self._has_file() and not self._has_export():
            raise self._nothing_there()

    def sql(
        self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> pl.DataFrame:
        """Run one query and return all of its rows.

        Args:
            query: One statement that only reads.
            parameters: Values for `$1` or `?` (a sequence), or `$name` (a mapping).

        Raises:
            QueryError: The class says what to change; see `moescope.storage.query`.
        """
        return self.run(query, parameters, on_overflow="error").to_polars()

    def run(
        self,
        query: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        on_overflow: Literal["truncate", "error"] = "truncate",
    ) -> QueryResult:
        """Run one query and return its rows as an Arrow IPC stream, with what is known about it.

        Raises:
            QueryError: The class says what to change; see `moescope.storage.query`.
        """
        failures: list[QuerySourceError] = []
        # An owner may start or stop between looking and reading: then the other source is right.
        for _ in range(_ATTEMPTS):
            for kind in self._kinds():
                try:
                    return self._pool(kind).run(query, parameters, on_overflow=on_overflow)
                except QuerySourceError as error:
                    failures.append(error)
        if not failures:
            raise self._nothing_there()
        raise failures[-1]

    def close(self) -> None:
        """End the worker processes. May be called twice."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    def __enter__(self) -> Self:
        """The connection itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _kinds(self) -> list[str]:
        """Sources to try: the file first, for it cannot be opened while an owner runs."""
        kinds = [FILE] if self._has_file() else []
        return [*kinds, EXPORT] if self._has_export() else kinds

    def _has_file(self) -> bool:
        return self._file is not None and self._file.is_file()

    def _has_export(self) -> bool:
        return self._export is not None and (self._export / MANIFEST_NAME).is_file()

    def _pool(self, kind: str) -> QueryPool:
        pool = self._pools.get(kind)
        if pool is None:
            path = self._file if kind == FILE else self._export
            if path is None:
                raise self._nothing_there()
            pool = self._pools[kind] = QueryPool(path, workers=1, limits=self._limits, kind=kind)
        return pool

    def _nothing_there(self) -> QuerySourceError:
        return QuerySourceError(
            f"There is no moescope data in {self._place}.",
            why=f"It holds neither a store file ({STORE_FILE}) nor an export.",
            next_step="Name the data directory (--data, --config or MOESCOPE_DATA_DIRECTORY; in "
            "Python connect(path)), or start an owner: it exports within a second.",
        )


def _parts(place: Path) -> tuple[Path | None, Path | None]:
    """The store file and the export folder that a path may mean."""
    if place.is_file():
        return place, None
    if (place / MANIFEST_NAME).is_file():
        return None, place
    return store_file(place), export_folder(place)
