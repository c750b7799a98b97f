"""Rows dealt into parts by what they are joined on, on disk beyond a little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from moescope.jobs.reports.comparison.reading import Rows

PART_BITS: Final = 6
PARTS: Final = 1 << PART_BITS
DEEPEST: Final = 4
"""Levels of parts: 2²⁴ of them, beyond which only equal keys can be together."""

_POSITION_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_KEY_FACTOR: Final = np.uint64(0xD6E8FEB86659FD93)


class RowParts:
    """Rows of one side in 64 parts: equal keys and positions are in one part.

    Args:
        folder: For its files; exists and is this object's own.
        row_type: Of the rows.
        buffer_bytes: Rows kept in memory before they are written.
        level: 0, or one more than that of the parts whose rows are dealt further.
    """

    def __init__(
        self, folder: Path, row_type: np.dtype[np.void], *, buffer_bytes: int, level: int = 0
    ) -> None:
        self._folder = folder
        self.row_type = row_type
        self._buffer_bytes = buffer_bytes
        self._level = level
        self._waiting: list[list[Rows]] = [[] for _ in range(PARTS)]
        self._waiting_bytes = 0
        self._rows = [0] * PARTS

    def add(self, rows: Rows) -> None:
        """Deal rows out.

        Raises:
            OSError: The disk refused.
        """
        part = part_of(rows, self._level)
        order = np.argsort(part, kind="stable")
        ends = np.cumsum(np.bincount(part, minlength=PARTS))
        for number, piece in enumerate(np.split(rows[order], ends[:-1])):
            if len(piece):
                self._waiting[number].append(piece)
                self._rows[number] += len(piece)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes > self._buffer_bytes:
            self._write()

    def bytes_of(self, number: int) -> int:
        """Size of a part's rows."""
        return self._rows[number] * self.row_type.itemsize

    def blocks(self, number: int) -> Iterator[Rows]:
        """A part's rows, in the order in which they were added."""
        file = self._file(number)
        if file.exists():
            at_once = max(1, self._buffer_bytes // self.row_type.itemsize)
            with file.open("rb") as opened:
                while len(block := np.fromfile(opened, self.row_type, at_once)):
                    yield block
        yield from self._waiting[number]

    def rows_of(self, number: int) -> Rows:
        """The same as one array."""
        blocks = list(self.blocks(number))
        return np.concatenate(blocks) if blocks else np.empty(0, self.row_type)

    def forget(self, number: int) -> None:
        """Free a part that is not needed any more."""
        self._waiting[number] = []
        self._file(number).unlink(missing_ok=True)

    def _write(self) -> None:
        for number, blocks in enumerate(self._waiting):
            if blocks:
                with self._file(number).open("ab") as file:
                    for block in blocks:
                        block.tofile(file)
                blocks.clear()
        self._waiting_bytes = 0

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:02d}.rows"


def part_of(rows: Rows, level: int) -> NDArray[np.int64]:
    """The part of each row at a level, 0 … 63, from its key and position."""
    positions = rows["position"].astype(np.uint64)
    mixed = (rows["key"] ^ (positions * _POSITION_FACTOR)) * _KEY_FACTOR
    mixed ^= mixed >> np.uint64(32)
    mixed *= _POSITION_FACTOR
    shift = np.uint64(64 - PART_BITS * (level + 1))
    part: NDArray[np.int64] = ((mixed >> shift) & np.uint64(PARTS - 1)).astype(np.int64)
    return part
