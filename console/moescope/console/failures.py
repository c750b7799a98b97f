"""Failures in words: what a person can do about whatever a command ends with."""

from __future__ import annotations

from typing import Final

from moescope.core.errors import DependencyUnreachableError, InputError, MoescopeError

SERVER_PACKAGES: Final = (
    "altair", "apscheduler", "duckdb", "jinja2", "numba", "polars", "pyarrow", "rich", "vl_convert",
)  # fmt: skip
"""What the extra `[server]` adds to the base install."""


class OutputClosedError(Exception):
    """The reader of standard output went away (`| head`): nothing is wrong."""


def explained(error: Exception) -> MoescopeError | None:
    """An error that says what to do next; None for faults of moescope itself."""
    if isinstance(error, MoescopeError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name in SERVER_PACKAGES:
        return InputError(
            f"This command needs {error.name}, which is not installed.",
            why="The base install is what an inference node needs, and no more.",
            next_step="In a checkout of moescope: pip install '.[server]'.",
        )
    if type(error).__module__.partition(".")[0] in {"duckdb", "_duckdb"}:
        return DependencyUnreachableError(
            "The store could not be read or written.",
            why=(str(error).splitlines() or [type(error).__name__])[0],
            next_step="Check the disk's free space and limits, then start again: what was "
            "committed is kept, and the rest is read again from the batch logs.",
        )
    if isinstance(error, OSError):
        return DependencyUnreachableError(
            "The operating system refused.",
            why=str(error),
            next_step="Check the path, its permissions and the free space.",
        )
    return None
