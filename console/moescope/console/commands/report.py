"""`moescope report`: pages for people who decide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, settings_from

app = typer.Typer(help="Write reports.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Keep the group a group while it holds one command."""


@app.command()
def calibration(
    version: Annotated[
        str, typer.Argument(help="Threshold version; the newest unless told otherwise.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to; the data directory's `reports` folder."),
    ] = None,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Write what a calibration rests on and how good it is, as one HTML page and its JSON twin.

    Example: moescope report calibration t-1 --out reports
    """
    from moescope.console.changes import WriteReport
    from moescope.console.changing import print_result
    from moescope.console.output import print_json
    from moescope.console.performing import perform

    settings = settings_from(config, data)
    # The owner may run in another folder.
    folder = str(out.expanduser().absolute()) if out else ""
    result = perform(settings, WriteReport(version=version, folder=folder))
    print_json(result) if as_json else print_result(result)
