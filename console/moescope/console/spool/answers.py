"""Errors and results as JSON, so that a command ends the same way through the spool."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from moescope.console.spool.folder import LARGEST_BYTES
from moescope.core.errors import (
    DependencyUnreachableError,
    InputError,
    InsufficientDataError,
    InternalError,
    MoescopeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_BY_EXIT_CODE: dict[int, type[MoescopeError]] = {
    kind.exit_code: kind for kind in (InputError, DependencyUnreachableError, InsufficientDataError)
}
LOOK: Final = "Look with the matching `list` command, or in the table `audit`, what was done."
_LONGEST_TEXT: Final = 10_000
"""Characters of each part of an error; so an error always fits into an answer."""


def answered(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What some work returned or raised, in a form that can be sent."""
    try:
        result = work()
    except MoescopeError as error:
        return {"error": error_document(error)}
    except BaseException as error:  # noqa: BLE001 (told to whoever asked; the owner goes on)
        return {
            "error": error_document(
                InternalError(
                    f"{type(error).__name__}: {error}",
                    why="This is a fault of moescope itself.",
                    next_step="Report it, with the message above.",
                )
            )
        }
    return _sendable({"result": result})


def _sendable(answer: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(json.dumps(answer))
    except (TypeError, ValueError, RecursionError) as error:
        fault = f"it cannot be written as JSON ({error})"
    else:
        if size <= LARGEST_BYTES:
            return answer
        fault = f"it has {size} bytes, and {LARGEST_BYTES} may be sent"
    return {
        "error": error_document(
            InternalError(
                "The command was carried out, but its answer cannot be sent.",
                why=f"The answer does not fit: {fault}.",
                next_step=f"Do not repeat the command. {LOOK}",
            )
        )
    }


def error_document(error: MoescopeError) -> dict[str, Any]:
    """All that the other side needs to raise it again."""
    return {
        "exit_code": error.exit_code,
        "what": _cut(error.what),
        "why": _cut(error.why),
        "next_step": _cut(error.next_step),
    }


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}… (cut)"


def result_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The result that an answer holds.

    Raises:
        MoescopeError: The error that it holds.
    """
    result, error = answer.get("result"), answer.get("error")
    if isinstance(result, dict):
        return result
    if not isinstance(error, dict):
        raise InternalError("The owner's answer holds neither a result nor an error.")
    kind = _BY_EXIT_CODE.get(int(error.get("exit_code", 70)), InternalError)
    raise kind(
        str(error.get("what", "")),
        why=str(error.get("why", "")),
        next_step=str(error.get("next_step", "")),
    )
