"""Importing files and processing them right away, when no owner runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.console.output import note, print_json, print_table
from moescope.console.places import log_root
from moescope.console.progress import progress
from moescope.core.errors import InputError
from moescope.producers.importers import FORMATS, import_files

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.settings import Settings


def list_formats(*, as_json: bool) -> None:
    """Print the known formats."""
    rows = [(name, form.summary) for name, form in FORMATS.items()]
    if as_json:
        print_json(dict(rows))
    else:
        print_table(("format", "what it reads"), rows)


def import_and_process(
    form: str, paths: list[Path], options: list[str], settings: Settings, *, process: bool
) -> dict[str, Any]:
    """Import files; then roll them up, unless an owner is running and does it anyway.

    Raises:
        InputError: A file, format or option cannot be used.
    """
    parsed: dict[str, str] = {}
    for option in options:
        name, sign, value = option.partition("=")
        if not sign:
            raise InputError(f"{option!r} is not NAME=VALUE.", next_step="Write -o name=value.")
        parsed[name] = value
    root = log_root(settings.data_directory)
    root.mkdir(parents=True, exist_ok=True)
    with progress(f"importing {form}") as report:
        imported = import_files(form, paths, root, parsed, progress=report)
    result: dict[str, Any] = imported.summary()
    if process:
        from moescope.console.owner import Owner
        from moescope.storage.errors import StoreInUseError

        try:
            with progress("processing"), Owner(settings) as owner:
                owner.run(until_idle=True)
            result["processed"] = True
        except StoreInUseError as error:
            note(
                f"{error.what} If that is `moescope run all`, it processes the import by itself; "
                "else run `moescope run all --until-idle` when it has ended."
            )
            result["processed"] = False
    return result
