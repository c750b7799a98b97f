"""What commands that change something share: ask first, do it, print what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.console.output import confirm, note, print_json, print_pairs
from moescope.console.performing import perform

if TYPE_CHECKING:
    from moescope.console.changes import Change
    from moescope.core.settings import Settings


def change_and_print(
    settings: Settings, change: Change, *, question: str, yes: bool, reason: str, as_json: bool
) -> dict[str, Any]:
    """Ask, carry out a change, and print its result.

    Raises:
        InputError: The answer was no, or the change is refused.
        MoescopeError: What the change raised.
    """
    if not yes:
        confirm(question)
    result = perform(settings, change, reason)
    if as_json:
        print_json(result)
    else:
        print_result(result)
    return result


def print_result(result: dict[str, Any]) -> None:
    """Plain values as pairs; notes go to standard error."""
    plain = {name: value for name, value in result.items() if name != "notes"}
    print_pairs({name.replace("_", " "): _words(value) for name, value in plain.items()})
    for line in result.get("notes", ()):
        note(str(line))


def _words(value: object) -> object:
    if isinstance(value, list):
        return "; ".join(str(_words(each)) for each in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(each)}" for name, each in value.items()) or "none"
    return value
