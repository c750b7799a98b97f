"""Files of responses: JSON lines, one JSON array, or one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moescope.producers.importers.errors import ImportFormatError, RejectedLineError
from moescope.producers.importers.json_values import parse_json
from moescope.producers.importers.source_files import read_document, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moescope.producers.importers.report import Rejects


def read_responses(path: Path, rejects: Rejects) -> Iterator[tuple[int, Any]]:
    """Responses of a file with their lines; a list on a line is a batch of responses.

    Raises:
        ImportFormatError: The file cannot be read.
    """
    is_first = True
    for number, text in read_lines(path, rejects):
        try:
            value = parse_json(text)
        except RejectedLineError as error:
            document = _document(path) if is_first else None
            if document is not None:
                yield from ((number, item) for item in document)
                return
            rejects.add(number, error)
        else:
            if value and isinstance(value, list):
                yield from ((number, item) for item in value)
            else:
                yield number, value
        is_first = False


def as_response(value: Any) -> dict[str, Any]:
    """One response.

    Raises:
        RejectedLineError: It is something else.
    """
    if not isinstance(value, dict):
        raise RejectedLineError("a response that is no object")
    return value


def _document(path: Path) -> list[Any] | None:
    """The responses of a document over several lines; None if it is no document."""
    try:
        value = parse_json(read_document(path))
    except (RejectedLineError, ImportFormatError):
        return None
    return value if isinstance(value, list) else [value]
