"""What deployment files say, read without the programs that they are for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import typer
import yaml

from moescope.console.app import app
from moescope.core.settings import ENVIRONMENT_PREFIX, SETTINGS, Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

VARIABLE: Final = re.compile(r"\$\{(?P<name>[A-Z_]+)(?P<kind>:-|:\?)(?P<rest>[^}]*)\}")
ANY_VARIABLE: Final = re.compile(r"\$\{?([A-Za-z_]+)")
SETTING_VARIABLES: Final = frozenset(setting.variable for setting in SETTINGS)
NO_SETTINGS: Final = frozenset({"MOESCOPE_CONFIG"})
"""Variables of moescope that deployment files use, and that are no settings."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # quicker
    """YAML with the tags that compose gives to files on top of others."""


_Loader.add_multi_constructor("!reset", lambda *_: None)


def yaml_documents(text: str) -> list[Any]:
    """Documents of a YAML text; what is marked `!reset` is None."""
    return [each for each in yaml.load_all(text, _Loader) if each is not None]


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """A compose file's values with variables replaced, by their defaults where not given.

    Raises:
        KeyError: A variable has no default and is not given.
    """
    if isinstance(value, dict):
        return {name: interpolated(each, variables) for name, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, variables) for each in value]
    if not isinstance(value, str):
        return value

    def replaced(found: re.Match[str]) -> str:
        given = variables.get(found["name"], "")
        if given or found["kind"] == ":-":
            return given or found["rest"]
        raise KeyError(found["name"])

    return VARIABLE.sub(replaced, value)


def parse_command(words: Iterable[str]) -> str:
    """Parse a command line of moescope as it would be, without running it; the command's name.

    Raises:
        Exception: Whatever the command line's parser refuses.
    """
    command: Any = typer.main.get_command(app)
    context = command.make_context("moescope", list(words))
    while callable(getattr(command, "resolve_command", None)):
        rest = [*context._protected_args, *context.args]  # noqa: SLF001 (click has no other way)
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return str(context.command_path)


def settings_of(environment: Mapping[str, str]) -> Settings:
    """Settings that an environment gives; fails on a variable that is none.

    Raises:
        SettingsError: A value is refused.
    """
    ours = {name for name in environment if name.startswith(ENVIRONMENT_PREFIX)}
    unknown = ours - SETTING_VARIABLES - NO_SETTINGS
    assert not unknown, unknown
    return load_settings(environment=dict(environment))


def refused_by(check: Callable[[], object]) -> bool:
    """Whether a check fails, whatever it raises."""
    try:
        check()
    except Exception:  # noqa: BLE001 (parsers raise all kinds of things)
        return True
    return False


def files_below(folder: Path, pattern: str) -> list[Path]:
    """Files of a folder, sorted; there must be some."""
    found = sorted(folder.rglob(pattern))
    assert found, (folder, pattern)
    return found
