"""The one root error class, and the errors that several components share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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


def one_line(error: BaseException) -> str:
    """What an error says, on one line: for a log, which has no place for several."""
    return " ".join(str(error).splitlines())


def _rebuild(kind: type[MoescopeError], what: str, why: str, next_step: str) -> MoescopeError:
    return kind(what, why=why, next_step=next_step)


class InputError(MoescopeError):
    """Wrong use or bad input: the caller has to change something."""

    exit_code = 2


class SettingsError(InputError):
    """A setting has an unknown name or a value outside of what it accepts."""


class SeveralSettingsError(SettingsError):
    """Several settings are refused at once, so that all can be mended at once.

    Args:
        errors: What is wrong with each.

    Attributes:
        errors: Likewise; none of them is of this class.
    """

    def __init__(self, errors: Sequence[MoescopeError]) -> None:
        self.errors = errors
        super().__init__(
            f"{len(errors)} settings are refused: {_numbered([each.what for each in errors])}",
            why=_numbered([each.why for each in errors]),
            next_step=_numbered([each.next_step for each in errors]),
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Its parts."""
        return type(self), (self.errors,)


def refuse(errors: Iterable[MoescopeError]) -> None:
    """Raise what was found, if anything was.

    Raises:
        MoescopeError: The error, where it is one.
        SeveralSettingsError: All of them, where they are several.
    """
    found = [
        part
        for error in errors
        for part in (error.errors if isinstance(error, SeveralSettingsError) else (error,))
    ]
    if len(found) > 1:
        raise SeveralSettingsError(found)
    if found:
        raise found[0]


def _numbered(texts: Sequence[str]) -> str:
    """All of them, with the number of each; once, where all are the same."""
    if len(set(texts)) == 1:
        return texts[0]
    return " ".join(f"({number}) {text}" for number, text in enumerate(texts, 1) if text)


class DependencyUnreachableError(MoescopeError):
    """Something that moescope needs (broker, owner, file lock) does not answer."""

    retriable = True
    exit_code = 3


class InsufficientDataError(MoescopeError):
    """There is too little data for an honest answer."""

    exit_code = 4


class InternalError(MoescopeError):
    """An invariant of moescope itself is broken: please report it."""
