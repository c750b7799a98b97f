"""An owner whose file cannot be written says so as long as that is so, and no longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

from moescope.console.owner import Owner
from moescope.core.settings import load_settings
from moescope.storage.errors import StoreWriteError

if TYPE_CHECKING:
    from pathlib import Path


def fail(connection: duckdb.DuckDBPyConnection, number: int) -> None:
    """What the database says where there is no room."""
    raise duckdb.IOException(f'Could not write commit {number} of "{connection}": No space left')


def succeed(connection: duckdb.DuckDBPyConnection, number: int) -> None:
    """Write nothing."""


def test_a_failed_write_is_trouble_until_one_succeeds(tmp_path: Path) -> None:
    """Commits, commands and jobs write alike, and any of them shows that there is room again."""
    settings = load_settings(environment={}, options={"data.directory": str(tmp_path)})
    with Owner(settings) as owner:
        store = owner.parts.store
        assert owner.trouble == ""
        with pytest.raises(StoreWriteError):
            store.change(fail, author="", action="", audit=False)
        assert "could not be written" in owner.trouble
        assert "Check free space" in owner.trouble
        store.change(succeed, author="", action="", audit=False)
        assert owner.trouble == ""
