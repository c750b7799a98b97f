"""What is wrong with bytes that should be a plain value."""

from __future__ import annotations

from moescope.core.errors import InputError


class PlainFormatError(InputError):
    """Bytes that are no value of the expected kinds."""


class PlainVersionError(PlainFormatError):
    """A value written by a moescope that knows more than this one."""


def damaged(why: str) -> PlainFormatError:
    """The error of bytes that nobody could read."""
    return PlainFormatError("Bytes are no value that this moescope reads.", why=why)


def too_new(why: str) -> PlainVersionError:
    """The error of bytes that another version reads."""
    return PlainVersionError(
        "A value was written by another version of moescope.",
        why=why,
        next_step="Upgrade this process: the store first, then processors, then agents.",
    )
