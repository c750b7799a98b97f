"""What commands that change something share: ask first, do it, print what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.console.output import confirm, print_json, print_pairs
from moescope.console.performing import perform
from moescope.console.times import shown

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
    """Plain values as pairs, lists of entries one pair each, a summary as it is."""
    for name, value in result.items():
        if name == "summary":
            print()
            for line in value:
                print(line)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for entry in value:
                print()
                print_pairs(
                    {key.replace("_", " "): _words(key, each) for key, each in entry.items()}
                )
        else:
            _print_entry({name: value})


def _print_entry(entry: dict[str, Any]) -> None:
    print_pairs({name.replace("_", " "): _words(name, value) for name, value in entry.items()})


def _words(name: str, value: object) -> object:
    if name.endswith("_us"):
        return f"{shown(value)} (event time, UTC)" if value is not None else "not yet: a draft"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items()) or "none"
    return value
