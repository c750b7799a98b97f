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
    """Check settings without starting anything; exit code 2 and a reason when one is refused.

    Example: moescope config check --config moescope.toml
    """
    from moescope.processors.config import WindowConfig

    settings = settings_from(config, data)
    WindowConfig.from_settings(settings)
    changed = [name for name, origin in settings.origins.items() if origin != "default"]
    if as_json:
        print_json({"valid": True, "not_default": changed})
    else:
        print(f"settings are valid; {len(changed)} differ from the defaults")
