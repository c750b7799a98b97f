"""Rows for commands that only look: they work beside a running owner, and without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from moescope.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moescope.core.settings import Settings


class Reader:
    """Runs queries over the data directory; use it in a `with` block.

    Raises:
        QuerySourceError: There is no data.
    """

    def __init__(self, settings: Settings) -> None:
        from moescope.storage.connection import Connection
        from moescope.storage.query.limits import QueryLimits

        self._connection = Connection(settings.data_directory, QueryLimits.from_settings(settings))

    def __enter__(self) -> Self:
        """The reader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the worker process."""
        self._connection.close()

    def rows(
        self, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[dict[str, Any]]:
        """All rows of a query, by column name; parameters as `Connection.sql` takes them."""
        result = self._connection.run(query, parameters, on_overflow="error")
        return list(result.to_arrow().to_pylist())

    def one(self, query: str, parameters: Sequence[Any], missing: str) -> dict[str, Any]:
        """The first row.

        Raises:
            InputError: There is none; `missing` says what was looked for.
        """
        found = self.rows(query, parameters)
        if not found:
            raise InputError(missing, next_step="The matching `list` command shows what there is.")
        return found[0]


def window_words(row: dict[str, Any]) -> str:
    """A window kind with its size in its unit, such as `time 5s/1s`."""
    kind, size, stride = row["window_kind"], int(row["size"]), int(row["stride"])
    if not size:
        return str(kind)
    scale, unit = (1_000_000, "s") if kind == "time" else (1, "")
    words = f"{kind} {size // scale}{unit}"
    return words if stride == size else f"{words}/{stride // scale}{unit}"


def scope_words(row: dict[str, Any]) -> str:
    """A scope with its value, such as `node sim-000`."""
    value = row.get("scope_value", "")
    return f"{row['scope_kind']} {value}" if value else str(row["scope_kind"])
