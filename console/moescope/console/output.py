"""Data to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from moescope.core.errors import InputError
from moescope.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def print_json(value: Any) -> None:  # noqa: ANN401 (whatever JSON can hold)
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns; numbers to the right."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [
        max(len(name), *(len(row[index]) for row in texts)) if texts else len(name)
        for index, name in enumerate(head)
    ]
    right = [
        bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        for i in range(len(head))
    ]
    for line in [list(head), ["-" * width for width in widths], *texts]:
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        print("  ".join(cells).rstrip())


def print_pairs(pairs: Mapping[str, object]) -> None:
    """Print names and values, one pair a line."""
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        print(f"{name.ljust(width)}  {_text(value)}")


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun, such as `1 letter` and `2,000 letters`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def note(text: str) -> None:
    """Tell the person something that is not data."""
    print(text, file=sys.stderr)


def confirm(question: str) -> None:
    """Ask on standard error, and go on only after a yes.

    Raises:
        InputError: The answer is anything else, or nobody answers.
    """
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise InputError("Nothing was done.", next_step="Answer y, or give --yes.")


def _text(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.3f}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return "" if cell is None else printable(str(cell))
