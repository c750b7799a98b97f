"""Errors and results as JSON, so that a command ends the same way through the spool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def answered(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What some work returned or raised."""
    try:
        return {"result": work()}
    except MoescopeError as error:
        return {"error": error_document(error)}
    except Exception as error:  # noqa: BLE001 (told to whoever asked; the owner goes on)
        return {
            "error": error_document(
                InternalError(
                    f"{type(error).__name__}: {error}",
                    why="This is a fault of moescope itself.",
                    next_step="Report it, with the message above.",
                )
            )
        }


def error_document(error: MoescopeError) -> dict[str, Any]:
    """All that the other side needs to raise it again."""
    return {
        "exit_code": error.exit_code,
        "what": error.what,
        "why": error.why,
        "next_step": error.next_step,
    }


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
