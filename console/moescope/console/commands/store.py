"""`moescope store`: the store file itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, Yes, settings_from
from moescope.console.output import confirm, note, print_json, print_pairs
from moescope.core.errors import InputError

if TYPE_CHECKING:
    from moescope.core.settings import Settings

app = typer.Typer(help="Migrate and export the store.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def migrate(
    config: ConfigFile = None, data: DataDirectory = None, as_json: AsJson = False, yes: Yes = False
) -> None:
    """Bring the store's tables to this version's schema; an owner does so when it starts.

    Example: moescope store migrate --yes
    """
    path = _existing_store(settings_from(config, data))

    from moescope.core.clock import SystemClock
    from moescope.storage.database import open_database
    from moescope.storage.migrations import MIGRATIONS
    from moescope.storage.schema import migrate as migrate_schema
    from moescope.storage.schema import schema_version

    with open_database(path) as connection:
        newest = max(number for number, _, _ in MIGRATIONS)
        if not yes and schema_version(connection) < newest:
            note("Make a copy of the store file first; a migration cannot be taken back.")
            confirm(f"Migrate {path}?")
        applied = migrate_schema(connection, SystemClock())
        version = schema_version(connection)
    result = {"store": str(path), "schema_version": version, "migrations_applied": applied}
    if as_json:
        print_json(result)
    else:
        print_pairs({**result, "migrations_applied": "; ".join(applied) or "none needed"})


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="New or empty folder for the Parquet files.")],
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Export every table to Parquet from one read transaction; needs the owner to be stopped.

    Example: moescope store export backup/2026-11-30
    """
    settings = settings_from(config, data)
    path = _existing_store(settings)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            f"The folder {folder} is not empty.",
            why="An export of the whole store is never mixed with other files.",
            next_step="Name a new folder.",
        )

    from moescope.console.opened_store import opened_store
    from moescope.console.progress import progress
    from moescope.storage.export import export_all

    with progress(f"exporting {path}"), opened_store(settings, closes_windows=False) as parts:
        manifest = export_all(parts.store, folder, parts.clock)
    tables = {name: len(files.data_paths()) for name, files in manifest.tables.items()}
    if as_json:
        print_json({"folder": str(folder), "files": tables})
    else:
        print_pairs({"folder": str(folder), **{f"files of {n}": k for n, k in tables.items()}})


def _existing_store(settings: Settings) -> Path:
    from moescope.storage.places import store_file

    path = store_file(settings.data_directory)
    if not path.exists():
        raise InputError(
            f"There is no store at {path}.",
            next_step="Check --data; `moescope run all` makes a new store.",
        )
    return path
