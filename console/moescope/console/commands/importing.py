"""`moescope import`: routing from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, settings_from
from moescope.console.output import note, print_json, print_pairs


def import_(
    form: Annotated[str, typer.Argument(metavar="FORMAT", help="A format; `list` shows them.")],
    paths: Annotated[list[Path] | None, typer.Argument(help="Files.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="Format option; repeatable."),
    ] = None,
    process: Annotated[
        bool, typer.Option(help="Also process what was imported, so that SQL sees it.")
    ] = True,
    as_json: AsJson = False,
    config: ConfigFile = None,
    data: DataDirectory = None,
) -> None:
    """Import recorded routing into batch logs, and process it.

    A file that was imported before changes nothing.

    Example: moescope import counts-json expert_counts.json -o top_k=8
    """
    from moescope.console.import_work import import_and_process, list_formats

    if form == "list":
        list_formats(as_json=as_json)
        return
    result = import_and_process(
        form, paths or [], option or [], settings_from(config, data), process=process
    )
    rejects, notes = result.pop("first_rejects"), result.pop("notes")
    if as_json:
        print_json({**result, "first_rejects": rejects, "notes": notes})
        return
    print_pairs({name: _words(value) for name, value in result.items()})
    for line in (*notes, *rejects):
        note(str(line))


def _words(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{count:,} {name}" for name, count in value.items()) or "none"
    return value
