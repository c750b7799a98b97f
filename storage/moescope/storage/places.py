"""Where the store's parts lie below the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

STORE_FILE: Final = "moescope.duckdb"
EXPORT_FOLDER: Final = "export"


def store_file(data_directory: Path) -> Path:
    """The DuckDB file that one owner opens."""
    return data_directory / STORE_FILE


def export_folder(data_directory: Path) -> Path:
    """The Parquet export that queries read while an owner runs."""
    return data_directory / EXPORT_FOLDER
