"""The DuckDB file with all windows: its schema, its owner's store, its export and its queries.

Names are imported on first use, so that a query worker or an analyst's `connect()` does not
load what only the owner needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moescope.storage.connection import connect
    from moescope.storage.database import open_database
    from moescope.storage.schema import migrate
    from moescope.storage.store import Store

__all__ = ["Store", "connect", "migrate", "open_database"]

_HOMES = {
    "Store": "moescope.storage.store",
    "connect": "moescope.storage.connection",
    "migrate": "moescope.storage.schema",
    "open_database": "moescope.storage.database",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
