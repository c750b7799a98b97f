"""What makes an import stop. Single bad lines do not: they are counted as rejected."""

from __future__ import annotations

from moescope.core.errors import InputError


class ImportFormatError(InputError):
    """A file cannot be imported in this format, or an option is wrong."""


class RejectedLineError(Exception):
    """One line or group cannot be used; the import goes on without it.

    Args:
        reason: A few words, the same for all lines of this kind.
        detail: What this line has that it should not.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        # A JSON text may hold halves of characters, which nothing can print.
        self.detail = detail.encode(errors="backslashreplace").decode()


class TooManyRejectsError(ImportFormatError):
    """More lines were rejected than the caller accepts."""
