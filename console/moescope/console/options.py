"""Options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from moescope.core.settings import Settings

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings file (TOML).", envvar="MOESCOPE_CONFIG"
    ),
]
DataDirectory = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Data directory (setting data.directory)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]


def settings_from(config: Path | None, data: Path | None) -> Settings:
    """Settings of the file, the environment and the options, later ones winning.

    Raises:
        SettingsError: Something is not accepted.
    """
    from moescope.core.settings import load_settings

    options: dict[str, object] = {} if data is None else {"data.directory": str(data)}
    return load_settings(config, options=options)
