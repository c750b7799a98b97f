"""`moescope config`: what is set, and from where."""

from __future__ import annotations

import typer

from moescope.console.options import AsJson, ConfigFile, DataDirectory, settings_from
from moescope.console.output import print_json, print_table

app = typer.Typer(help="Show and check settings.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def show(config: ConfigFile = None, data: DataDirectory = None, as_json: AsJson = False) -> None:
    """List every setting, its value and where the value comes from.

    Example: moescope config show --config moescope.toml
    """
    from moescope.core.settings import SETTINGS

    settings = settings_from(config, data)
    if as_json:
        print_json(
            {
                setting.name: {
                    "value": settings[setting.name],
                    "origin": settings.origins[setting.name],
                    "default": setting.default,
                    "help": setting.help,
                }
                for setting in SETTINGS
            }
        )
        return
    print_table(
        ("setting", "value", "from", "meaning"),
        [
            (
                setting.name,
                str(settings[setting.name]),
                settings.origins[setting.name],
                setting.help,
            )
            for setting in SETTINGS
        ],
    )


@app.command()
def check(config: ConfigFile = None, data: DataDirectory = None, as_json: AsJson = False) -> None:
    """Check settings without starting anything; exit code 2 and reasons when some are refused.

    The files that they name are read, and so are the variables of the vLLM plugin, as an engine of
    this user and with this environment would; exit code 3 when its folder cannot be used.

    Example: moescope config check --config moescope.toml
    """
    from moescope.console.settings_check import check_all, environment_lines

    settings, found = check_all(config, data)
    changed = [name for name, origin in settings.origins.items() if origin != "default"]
    lines = environment_lines(found)
    if as_json:
        print_json(
            {
                "valid": True,
                "not_default": changed,
                "producer_variables": found.variables,
                "notes": lines,
            }
        )
        return
    print(f"settings are valid; {len(changed)} differ from the defaults")
    for line in lines:
        print(line)
