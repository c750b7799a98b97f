"""Options that commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moescope.console.output import note

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the audit.")]


def settings_from(config: Path | None, data: Path | None) -> Settings:
    """Settings of the file, the environment and the options, later ones winning.

    Raises:
        SettingsError: Something is not accepted.
    """
    from moescope.core.settings import load_settings

    for variable, meant in misspelt_variables(os.environ):
        note(f"{variable} is not a setting and has no effect; did you mean {meant}?")
    options: dict[str, object] = {} if data is None else {"data.directory": str(data)}
    return load_settings(config, options=options)


def misspelt_variables(environment: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Environment variables that look like a setting's, and the one that was probably meant."""
    from moescope.core.settings import ENVIRONMENT_PREFIX, SETTINGS

    known = {setting.variable for setting in SETTINGS}
    unknown = [
        name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in known
    ]
    if unknown:  # else no command loads the producers for this
        from moescope.producers.vllm_plugin.misspelt import misspelt_variables as misspelt

        yield from misspelt(unknown)
