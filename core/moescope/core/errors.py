"""The one root error class, and the errors that several components share."""

from __future__ import annotations

from typing import ClassVar


class MoescopeError(Exception):
    """Root of every error that moescope raises on purpose.

    Args:
        what: What happened, in one sentence.
        why: The cause, as far as it is known.
        next_step: What the reader can do about it.

    Attributes:
        retriable: Whether the same call may succeed later without a change.
        exit_code: The exit code with which the command line ends on this error.
    """

    retriable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 70

    def __init__(self, what: str, *, why: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next_step = next_step

    def __str__(self) -> str:
        """All three parts, one line each."""
        parts = [self.what]
        if self.why:
            parts.append(f"Why: {self.why}")
        if self.next_step:
            parts.append(f"Next: {self.next_step}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the keyword arguments when the error crosses a process boundary."""
        return _rebuild, (type(self), self.what, self.why, self.next_step)


def _rebuild(kind: type[MoescopeError], what: str, why: str, next_step: str) -> MoescopeError:
    return kind(what, why=why, next_step=next_step)


class InputError(MoescopeError):
    """Wrong use or bad input: the caller has to change something."""

    exit_code = 2


class SettingsError(InputError):
    """A setting has an unknown name or a value outside of what it accepts."""


class DependencyUnreachableError(MoescopeError):
    """Something that moescope needs (broker, owner, file lock) does not answer."""

    retriable = True
    exit_code = 3


class InsufficientDataError(MoescopeError):
    """There is too little data for an honest answer."""

    exit_code = 4


class InternalError(MoescopeError):
    """An invariant of moescope itself is broken: please report it."""
