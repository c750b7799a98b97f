"""The beginning of a file, to see whether it is of a format at all."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.report import Rejects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FIRST_LINES: Final = 64
"""So many are looked at: the first ones of a good file may well be bad."""


class FirstReject(Rejects):
    """Keeps the first rejected line, and writes none to a file.

    Args:
        source: The file, as it is named in messages.
    """

    def __init__(self, source: str) -> None:
        super().__init__(source, Path(), None)
        self.text = ""

    def add(self, line: int, error: RejectedLineError, file: Path | None = None) -> None:  # noqa: ARG002 - of one file
        """Take in one rejected line."""
        detail = f" ({error.detail})" if error.detail else ""
        self.text = self.text or f"line {line}: {error.reason}{detail}"


def look_at(
    path: Path,
    form: str,
    lines: Callable[[Rejects], Iterable[tuple[int, Any]]],
    understand: Callable[[Any], object],
) -> None:
    """See whether one of a file's first lines can be understood.

    Args:
        path: For messages.
        form: Name of the format.
        lines: What the file has, with line numbers, from the first one on.
        understand: Raises RejectedLineError for what is not of the format.

    Raises:
        ImportFormatError: The file cannot be read, or none of the lines is of the format.
    """
    rejects = FirstReject(str(path))
    for number, content in islice(lines(rejects), FIRST_LINES):
        try:
            understand(content)
        except RejectedLineError as error:
            rejects.add(number, error)
            continue
        return
    raise ImportFormatError(
        f"{path} is not of the format {form}.",
        why=f"Of its beginning, {rejects.text}." if rejects.text else "It is empty.",
        next_step="Choose another format (`moescope import list`), or check the file and what "
        "-o says of its fields.",
    )
