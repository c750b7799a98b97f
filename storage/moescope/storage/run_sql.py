"""One query from start to text, for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.storage.connection import Connection
from moescope.storage.query.limits import QueryLimits
from moescope.storage.query.render import render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moescope.core.settings import Settings


def run_sql(
    settings: Settings,
    query: str,
    form: str = "table",
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
) -> bytes:
    """Run one query over the data directory and render its rows.

    Args:
        settings: Name the data directory and the limits.
        query: One statement that only reads.
        form: `table`, `json`, `csv` or `arrow`.
        parameters: Values for `$1` or `?` (a sequence), or `$name` (a mapping).

    Returns:
        What belongs on standard output.

    Raises:
        QueryError: The class says what to change.
        InputError: An unknown format.
    """
    limits = QueryLimits.from_settings(settings)
    with Connection(settings.data_directory, limits) as connection:
        return render(connection.run(query, parameters), form)
