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
    print_json(result) if as_json else print_pairs(result)
    for line in result.get("first_rejects", []):
        note(str(line))
