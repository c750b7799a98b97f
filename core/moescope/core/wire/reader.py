"""A reader over bytes that never runs past their end."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from moescope.core.wire.errors import BatchDecodeError

if TYPE_CHECKING:
    import struct

    from moescope.core.wire.limits import Budget


class ByteReader:
    """Reads a section from front to back.

    Args:
        data: The bytes.
        name: What they are, for error messages.
        memory: What arrays made from these bytes are charged to.
        strings: What names made from these bytes are charged to.
    """

    def __init__(
        self, data: bytes | memoryview, name: str, memory: Budget, strings: Budget
    ) -> None:
        self._data = memoryview(data)
        self._length = len(self._data)
        self._position = 0
        self.name = name
        self.memory = memory
        self.strings = strings

    def take(self, length: int) -> memoryview:
        """Return the next `length` bytes, without copying them.

        Raises:
            BatchDecodeError: Fewer are left.
        """
        end = self._position + length
        if end > self._length:
            raise self._ends_early(length)
        piece = self._data[self._position : end]
        self._position = end
        return piece

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the next fields of a fixed layout.

        Raises:
            BatchDecodeError: Fewer bytes are left.
        """
        start = self._position
        end = start + layout.size
        if end > self._length:
            raise self._ends_early(layout.size)
        self._position = end
        return layout.unpack_from(self._data, start)

    def text(self, length: int) -> str:
        """Return the next `length` bytes as text.

        Raises:
            BatchDecodeError: Fewer are left, or they are not UTF-8, or over the limit.
        """
        self.strings.spend(length)
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise BatchDecodeError(f"{self.name} holds text that is not UTF-8") from error

    def texts(self, lengths: list[int]) -> list[str]:
        """Return the next pieces of text, each of so many bytes.

        Raises:
            BatchDecodeError: Fewer are left, or they are not UTF-8, or over the limit.
        """
        whole = sum(lengths)
        self.strings.spend(whole)
        data = self.take(whole)
        ends = list(accumulate(lengths))
        pieces = zip([0, *ends], ends, strict=False)
        try:
            text = str(data, "utf-8")
            if len(text) == whole:  # one byte per character
                return [text[begin:end] for begin, end in pieces]
            return [str(data[begin:end], "utf-8") for begin, end in pieces]
        except UnicodeDecodeError as error:
            raise BatchDecodeError(f"{self.name} holds text that is not UTF-8") from error

    def finish(self) -> None:
        """Make sure that nothing is left.

        Raises:
            BatchDecodeError: Bytes are left.
        """
        left = self._length - self._position
        if left:
            raise BatchDecodeError(f"{self.name} has {left} bytes too many")

    def _ends_early(self, wanted: int) -> BatchDecodeError:
        left = self._length - self._position
        return BatchDecodeError(f"{self.name} ends early: {wanted} bytes wanted, {left} left")
