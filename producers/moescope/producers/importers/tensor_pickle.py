"""The pickle inside of a tensor file, read by a small machine that can build data and nothing else.

Python's own unpickler calls what the file names and allocates what it claims. This machine knows
numbers, text, lists, dictionaries and tensors; everything else is refused before it is looked at.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_STOP: Final = ord(".")
_MARK: Final = object()
_LONGEST_INTEGER_BYTES: Final = 8
_PROTOCOLS: Final = (2, 3)
_TENSOR: Final = "torch._utils _rebuild_tensor_v2"
_ORDERED: Final = "collections OrderedDict"


class TensorPickleError(ValueError):
    """The pickle is damaged, or does something that data need not do."""


@dataclass(frozen=True, slots=True)
class Name:
    """A global name that the pickle mentions; nothing is imported."""

    text: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a tensor's numbers lie.

    Attributes:
        kind: Name of the storage type. key: Of the archive's entry.
        numbers: Length of the storage.
    """

    kind: str
    key: str
    numbers: int


@dataclass(frozen=True, slots=True)
class TensorView:
    """A view of a storage; nothing is read yet.

    Attributes:
        offset, strides: In numbers, not bytes.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def load(pickle: bytes, *, most_values: int) -> Any:
    """The data of a pickle of protocol 2 or 3.

    Args:
        pickle: Its bytes.
        most_values: Bound of the objects that it may create.

    Returns:
        Numbers, text, None, lists, tuples and dictionaries of such, and `TensorView`s.

    Raises:
        TensorPickleError: It is damaged or too large, or does something else.
    """
    machine = _Machine(pickle, most_values)
    try:
        return machine.run()
    except (IndexError, KeyError, TypeError, ValueError, struct.error, UnicodeError) as error:
        if isinstance(error, TensorPickleError):
            raise
        message = f"damaged at byte {machine.at}"
        raise TensorPickleError(message) from error


class _Machine:
    def __init__(self, pickle: bytes, most_values: int) -> None:
        self._pickle = pickle
        self._most_values = most_values
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self.at = 0
        push = self._stack.append
        self._operations: Mapping[int, Callable[[], None]] = {
            0x80: self._protocol,
            ord("("): lambda: push(_MARK),
            ord("N"): lambda: push(None),
            0x88: lambda: push(True),  # noqa: FBT003 (a value)
            0x89: lambda: push(False),  # noqa: FBT003 - as above
            ord("]"): lambda: push([]),
            ord("}"): lambda: push({}),
            ord(")"): lambda: push(()),
            ord("K"): lambda: push(self._unsigned(1)),
            ord("M"): lambda: push(self._unsigned(2)),
            ord("J"): lambda: push(struct.unpack("<i", self._take(4))[0]),
            ord("G"): lambda: push(struct.unpack(">d", self._take(8))[0]),
            0x8A: self._long,
            ord("X"): self._text,
            ord("a"): self._append,
            ord("e"): self._appends,
            ord("s"): self._set_item,
            ord("u"): self._set_items,
            ord("t"): lambda: push(tuple(self._above_mark())),
            0x85: lambda: self._tuple_of(1),
            0x86: lambda: self._tuple_of(2),
            0x87: lambda: self._tuple_of(3),
            ord("q"): lambda: self._put(1),
            ord("r"): lambda: self._put(4),
            ord("h"): lambda: self._get(1),
            ord("j"): lambda: self._get(4),
            ord("c"): self._name,
            ord("Q"): self._storage,
            ord("R"): self._call,
        }

    def run(self) -> Any:
        pickle, size = self._pickle, len(self._pickle)
        values = 0
        while self.at < size:
            operation = pickle[self.at]
            self.at += 1
            if operation == _STOP:
                if len(self._stack) != 1:
                    break
                return self._stack[0]
            do = self._operations.get(operation)
            if do is None:
                message = f"operation {bytes([operation])!r} at byte {self.at - 1} is no data"
                raise TensorPickleError(message)
            do()
            values += 1
            if values > self._most_values:
                message = f"more than {self._most_values} values"
                raise TensorPickleError(message)
        message = f"damaged at byte {self.at}"
        raise TensorPickleError(message)

    def _take(self, size: int) -> bytes:
        taken = self._pickle[self.at : self.at + size]
        if len(taken) < size:
            message = f"cut off at byte {self.at}"
            raise TensorPickleError(message)
        self.at += size
        return taken

    def _unsigned(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _line(self) -> str:
        end = self._pickle.index(b"\n", self.at)
        return self._take(end + 1 - self.at)[:-1].decode()

    def _above_mark(self) -> list[Any]:
        stack = self._stack
        mark = len(stack) - 1
        while stack[mark] is not _MARK:
            mark -= 1
            if mark < 0:
                raise IndexError
        taken = stack[mark + 1 :]
        del stack[mark:]
        return taken

    def _protocol(self) -> None:
        number = self._unsigned(1)
        if number not in _PROTOCOLS:
            message = f"pickle protocol {number}"
            raise TensorPickleError(message)

    def _text(self) -> None:
        self._stack.append(self._take(self._unsigned(4)).decode())

    def _long(self) -> None:
        size = self._unsigned(1)
        if size > _LONGEST_INTEGER_BYTES:
            message = f"an integer of {size} bytes"
            raise TensorPickleError(message)
        self._stack.append(int.from_bytes(self._take(size), "little", signed=True))

    def _append(self) -> None:
        value = self._stack.pop()
        self._list().append(value)

    def _appends(self) -> None:
        values = self._above_mark()
        self._list().extend(values)

    def _list(self) -> list[Any]:
        if type(self._stack[-1]) is not list:
            raise TypeError
        return self._stack[-1]

    def _set_item(self) -> None:
        values = self._stack[-2:]
        del self._stack[-2:]
        self._fill(values)

    def _set_items(self) -> None:
        self._fill(self._above_mark())

    def _fill(self, values: list[Any]) -> None:
        # Hashing what a file made up (tuples in tuples in tuples) could exhaust the C stack.
        if type(self._stack[-1]) is not dict or any(type(key) is not str for key in values[::2]):
            raise TypeError
        self._stack[-1].update(zip(values[::2], values[1::2], strict=True))

    def _tuple_of(self, size: int) -> None:
        if size > len(self._stack):
            raise IndexError
        taken = tuple(self._stack[len(self._stack) - size :])
        if any(value is _MARK for value in taken):
            raise IndexError
        del self._stack[len(self._stack) - size :]
        self._stack.append(taken)

    def _put(self, size: int) -> None:
        self._memo[self._unsigned(size)] = self._stack[-1]

    def _get(self, size: int) -> None:
        self._stack.append(self._memo[self._unsigned(size)])

    def _name(self) -> None:
        module, attribute = self._line(), self._line()
        self._stack.append(Name(f"{module} {attribute}"))

    def _storage(self) -> None:
        kind, storage, key, _, numbers = self._stack.pop()
        types = (type(kind), type(storage), type(key), type(numbers))
        if types != (str, Name, str, int) or kind != "storage":
            raise TypeError
        self._stack.append(Storage(storage.text, key, numbers))

    def _call(self) -> None:
        arguments, called = self._stack.pop(), self._stack.pop()
        if called == Name(_ORDERED) and arguments == ():
            self._stack.append({})
        elif called == Name(_TENSOR) and type(arguments) is tuple:
            storage, offset, shape, strides = arguments[:4]
            if (type(storage), type(shape), type(strides)) != (Storage, tuple, tuple):
                raise TypeError
            if any(type(part) is not int for part in (offset, *shape, *strides)):
                raise TypeError
            self._stack.append(TensorView(storage, offset, shape, strides))
        else:
            name = called.text.replace(" ", ".") if isinstance(called, Name) else "something"
            message = f"it would call {name}"
            raise TensorPickleError(message)
