"""Plain values to bytes and back: a JSON head for what is small, raw arrays and bytes behind it.

Nothing in the bytes names code: a reader constructs the classes that it was given, and those
only. Classes travel with the names of their fields, so that a field with a default can be added.
"""

from __future__ import annotations

import json
import struct
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from itertools import accumulate, islice, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import zstandard

from moescope.core.errors import InputError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MAGIC: Final = b"MSPV"
VERSION: Final = 1
DEEPEST: Final = 24
"""Containers and objects inside each other."""

_PREFIX: Final = struct.Struct("<4sBQI")
_ALIGNMENT: Final = 8
_TUPLE, _LIST, _DICT, _FROZENSET, _SHARED, _ARRAY, _BYTES, _OBJECT = range(8)
_PLAIN: Final = frozenset({type(None), bool, int, float, str})
_DTYPES: Final = frozenset(
    {"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"}
)
_DIMENSIONS: Final = 8


class PlainFormatError(InputError):
    """Bytes that are no value of the expected kinds."""


class PlainVersionError(PlainFormatError):
    """A value written by a moescope that knows more than this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLimits:
    """Largest accepted sizes, checked before anything of that size is allocated.

    Attributes:
        inflated_bytes: Of the whole value, decompressed.
        head_bytes: Of its JSON head, whose objects take many times as much memory.
    """

    inflated_bytes: int = 512 << 20
    head_bytes: int = 64 << 20


DEFAULT_LIMITS: Final = PlainLimits()


class Kinds:
    """The classes that may appear in a value, known by their names.

    Args:
        classes: Dataclasses, NamedTuples and enums.
        shared: Those of them whose equal objects are written once, and come back as one; their
            fields hold numbers, text and tuples of these only.
    """

    def __init__(self, classes: Iterable[type], *, shared: Iterable[type] = ()) -> None:
        self._by_name = {each.__name__: each for each in classes}
        self._fields = {
            each: _field_names(each)
            for each in self._by_name.values()
            if not issubclass(each, Enum)
        }
        self.shared = frozenset(shared) | {
            each for each in self._by_name.values() if issubclass(each, Enum)
        }

    def fields_of(self, kind: type) -> tuple[str, ...] | None:
        """Field names of a class; None where it is unknown."""
        return self._fields.get(kind)

    def knows(self, kind: type) -> bool:
        """Whether objects of exactly this class may appear."""
        return self._by_name.get(kind.__name__) is kind

    def named(self, name: object) -> type:
        """The class of a name.

        Raises:
            PlainVersionError: There is none.
        """
        found = self._by_name.get(name) if isinstance(name, str) else None
        if found is None:
            raise _too_new(f"It holds a {str(name)[:80]!r}, which this moescope does not know.")
        return found


def _field_names(kind: type) -> tuple[str, ...]:
    if is_dataclass(kind):
        return tuple(each.name for each in fields(kind) if each.init)
    return tuple(kind._fields)  # type: ignore[attr-defined]


def _required(kind: type) -> frozenset[str]:
    if is_dataclass(kind):
        return frozenset(
            each.name
            for each in fields(kind)
            if each.init and each.default is MISSING and each.default_factory is MISSING
        )
    return frozenset(kind._fields) - frozenset(kind._field_defaults)  # type: ignore[attr-defined]


def pack(value: object, kinds: Kinds, limits: PlainLimits = DEFAULT_LIMITS) -> bytes:
    """Serialise a value.

    Args:
        value: None, booleans, integers, floats (bit for bit), text, bytes, numpy arrays of
            numbers or booleans, and tuples, lists, frozensets, dictionaries and objects of
            `kinds` of such values.
        kinds: The classes that may appear.
        limits: Of whoever reads it.

    Raises:
        InternalError: Something else appears in it, or it is over the limits.
    """
    packer = _Packer(kinds)
    tree = packer.tree(value)
    head = json.dumps(
        {
            "kinds": packer.described_kinds(),
            "shared": packer.shared,
            "shapes": [list(each) for each in packer.shapes],
            "arrays": packer.arrays,
            "bytes": [len(each) for each in packer.blobs],
            "value": tree,
        },
        separators=(",", ":"),
    ).encode()
    raw = b"".join([head, b"\0" * (-len(head) % _ALIGNMENT), *packer.bodies, *packer.blobs])
    if len(raw) > limits.inflated_bytes or len(head) > limits.head_bytes:
        raise InternalError(
            f"A value of {len(raw):,} bytes is too large to be sent.",
            why=f"The limit is {limits.inflated_bytes:,} bytes, {limits.head_bytes:,} of its head.",
            next_step="Commit more often: processor.commit_records.",
        )
    return _PREFIX.pack(MAGIC, VERSION, len(raw), len(head)) + zstandard.ZstdCompressor(
        level=1
    ).compress(raw)


def unpack(data: bytes, kinds: Kinds, limits: PlainLimits = DEFAULT_LIMITS) -> Any:  # noqa: ANN401
    """Read what :func:`pack` wrote; arrays are writable and own their memory.

    Raises:
        PlainFormatError: The bytes are damaged, or over the limits.
        PlainVersionError: They were written by a newer moescope.
    """
    raw, head_bytes = _inflated(data, limits)
    try:
        head = json.loads(raw[:head_bytes])
        return _Unpacker(kinds, head, raw, head_bytes).value(head["value"])
    except PlainFormatError:
        raise
    except (
        ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, StopIteration,
        TypeError, ValueError,
    ) as error:  # fmt: skip
        raise _damaged(f"{type(error).__name__}: {str(error)[:200]}") from error


def _inflated(data: bytes, limits: PlainLimits) -> tuple[bytes, int]:
    """The decompressed bytes, and how many of them are the head."""
    if len(data) < _PREFIX.size:
        raise _damaged("It is cut off.")
    magic, version, size, head_bytes = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise _damaged("It does not begin as such a value does.")
    if version != VERSION:
        raise _too_new(f"It has format {version}; this moescope reads {VERSION}.")
    if size > limits.inflated_bytes or head_bytes > min(limits.head_bytes, size):
        raise _damaged(f"It declares {size:,} bytes, {head_bytes:,} of them its head.")
    frame = data[_PREFIX.size :]
    try:
        # The library allocates what the frame declares, whatever it is told.
        if zstandard.frame_content_size(frame) != size:
            raise _damaged("Its frame declares another size.")
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False), head_bytes
    except zstandard.ZstdError as error:
        raise _damaged(str(error)) from error


class _Packer:
    """One value on its way to bytes."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._numbers: dict[type, int] = {}
        self._places: dict[tuple[type, object], int] = {}
        self._forms: dict[tuple[str, tuple[int, ...]], int] = {}
        self.shared: list[Any] = []
        self.arrays: list[int] = []
        self.bodies: list[bytes] = []
        self.blobs: list[bytes] = []
        self._handlers: dict[type, Callable[[Any], Any]] = {
            tuple: lambda value: [_TUPLE, *self._trees(value)],
            list: lambda value: [_LIST, *self._trees(value)],
            frozenset: lambda value: [_FROZENSET, *self._trees(value)],
            dict: self._mapping,
            MappingProxyType: self._mapping,
            bytes: self._bytes,
            np.ndarray: self._array,
        }

    @property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return list(self._forms)

    def described_kinds(self) -> list[list[Any]]:
        """Name and field names of each class that appeared."""
        return [[kind.__name__, *(self._kinds.fields_of(kind) or ())] for kind in self._numbers]

    def tree(self, value: Any) -> Any:  # noqa: ANN401
        """A value as JSON has it."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        handler = self._handlers.get(kind)
        if handler is None:
            handler = self._handlers[kind] = self._handler_of(kind)
        return handler(value)

    def _trees(self, values: Iterable[Any]) -> list[Any]:
        # Most values are plain: asking here saves a call for each.
        return [each if type(each) in _PLAIN else self.tree(each) for each in values]

    def _handler_of(self, kind: type) -> Callable[[Any], Any]:
        if issubclass(kind, np.generic):
            return lambda value: self.tree(value.item())
        if issubclass(kind, dict):
            return self._mapping
        if not self._kinds.knows(kind):
            raise InternalError(
                f"A {kind.__module__}.{kind.__qualname__} cannot be sent.",
                why="It is not among the declared kinds of values.",
                next_step="Report it, with the message above.",
            )
        number = self._numbers.setdefault(kind, len(self._numbers))
        names = self._kinds.fields_of(kind)
        if kind in self._kinds.shared:
            return lambda value: self._shared_object(value, kind, number, names)
        if names is None or issubclass(kind, tuple):
            return lambda value: [_OBJECT, number, *self._trees(value)]
        return lambda value: [
            _OBJECT,
            number,
            *self._trees([getattr(value, name) for name in names]),
        ]

    def _shared_object(
        self,
        value: Any,  # noqa: ANN401
        kind: type,
        number: int,
        names: tuple[str, ...] | None,
    ) -> list[Any]:
        place = self._places.get((kind, value))
        if place is None:
            place = self._places[kind, value] = len(self.shared)
            contents = (
                [value.value]
                if names is None
                else self._trees(getattr(value, name) for name in names)
            )
            self.shared.append([number, *contents])
        return [_SHARED, place]

    def _mapping(self, value: Mapping[Any, Any]) -> list[Any]:
        tree: list[Any] = [_DICT]
        for key, each in value.items():
            tree += (self.tree(key), self.tree(each))
        return tree

    def _bytes(self, value: bytes) -> list[Any]:
        self.blobs.append(value)
        return [_BYTES]

    def _array(self, value: np.ndarray[Any, Any]) -> list[Any]:
        form = (value.dtype.str, value.shape)
        place = self._forms.get(form)
        if place is None:
            if form[0] not in _DTYPES:
                raise InternalError(f"An array of {value.dtype} cannot be sent.")
            place = self._forms[form] = len(self._forms)
        self.arrays.append(place)
        self.bodies.append(value.tobytes())
        if unaligned := value.nbytes % _ALIGNMENT:
            self.bodies.append(b"\0" * (_ALIGNMENT - unaligned))
        return [_ARRAY]


class _Unpacker:
    """One value on its way back from bytes."""

    def __init__(self, kinds: Kinds, head: dict[str, Any], raw: bytes, head_bytes: int) -> None:
        self._depth = 0
        self._raw = raw
        self._makers = [_maker(kinds, *described) for described in head["kinds"]]
        self._forms = [_form(*each) for each in head["shapes"]]
        forms = [self._forms[_index(place)] for place in head["arrays"]]
        body = head_bytes + -head_bytes % _ALIGNMENT
        starts = list(accumulate((form.padded for form in forms), initial=body))
        cuts = list(accumulate(map(_index, head["bytes"]), initial=starts[-1]))
        if cuts[-1] != len(raw):
            raise _damaged("Its parts do not fill it.")
        # Each is taken once, in order: a value can be no larger than its bytes.
        self._arrays = zip(forms, starts[:-1], strict=True)
        self._blobs = pairwise(cuts)
        # None can refer to another: a chain of doublings would take forever to hash.
        self._shared: list[Any] = []
        self._shared = [self._made(each[0], each[1:]) for each in head["shared"]]

    def value(self, tree: Any) -> Any:  # noqa: ANN401
        """The value that a tree stands for."""
        kind = type(tree)
        if kind in _PLAIN:
            return tree
        if kind is not list:
            raise _damaged("Its head holds something else than values.")
        code = tree[0]
        if code == _ARRAY:
            return self._array()
        if code == _SHARED:
            return self._shared[_index(tree[1])]
        self._depth += 1
        if self._depth > DEEPEST:
            raise _damaged(f"Its values lie more than {DEEPEST} deep in each other.")
        result = self._compound(code, tree)
        self._depth -= 1
        return result

    def _compound(self, code: Any, tree: list[Any]) -> Any:  # noqa: ANN401
        if code == _OBJECT:
            return self._made(tree[1], tree[2:])
        if code == _BYTES:
            begin, end = next(self._blobs)
            return self._raw[begin:end]
        values = [
            each if type(each) in _PLAIN else self.value(each) for each in islice(tree, 1, None)
        ]
        if code == _TUPLE:
            return tuple(values)
        if code == _LIST:
            return values
        if code == _DICT:
            return dict(zip(values[::2], values[1::2], strict=True))
        if code == _FROZENSET:
            return frozenset(values)
        raise _damaged("Its head holds an unknown sign.")

    def _made(self, number: Any, trees: list[Any]) -> Any:  # noqa: ANN401
        return self._makers[_index(number)](
            [each if type(each) in _PLAIN else self.value(each) for each in trees]
        )

    def _array(self) -> np.ndarray[Any, Any]:
        form, start = next(self._arrays)
        flat = np.frombuffer(self._raw, form.dtype, form.count, start)
        # A copy each, so that one array that is kept does not keep all the others.
        return flat.reshape(form.shape).copy()


def _maker(kinds: Kinds, name: object, *names: object) -> Callable[[list[Any]], Any]:
    kind = kinds.named(name)
    if issubclass(kind, Enum):
        return lambda values: kind(*values)
    known = kinds.fields_of(kind) or ()
    if unknown := [each for each in names if each not in known]:
        raise _too_new(f"A {name} has the unknown fields {str(unknown)[:200]}.")
    if len(set(names)) != len(names):
        raise _damaged(f"A {name} has a field twice.")
    if missing := _required(kind) - set(names):
        raise _damaged(f"A {name} lacks {', '.join(sorted(missing))}.")
    texts = tuple(str(each) for each in names)
    return lambda values: kind(**dict(zip(texts, values, strict=True)))


@dataclass(frozen=True, slots=True)
class _Form:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    count: int
    padded: int


def _form(name: object, shape: list[Any]) -> _Form:
    if name not in _DTYPES or len(shape) > _DIMENSIONS:
        raise _damaged(f"It holds an array of {str(name)[:80]!r}.")
    dtype = np.dtype(str(name))
    count = 1
    for each in shape:
        count *= _index(each)
    size = count * dtype.itemsize
    return _Form(dtype, tuple(shape), count, size + -size % _ALIGNMENT)


def _index(value: object) -> int:
    if type(value) is not int or value < 0:
        raise _damaged("It holds something else where a number belongs.")
    return value


def _damaged(why: str) -> PlainFormatError:
    return PlainFormatError("Bytes are no value that this moescope reads.", why=why)


def _too_new(why: str) -> PlainVersionError:
    return PlainVersionError(
        "A value was written by another version of moescope.",
        why=why,
        next_step="Upgrade this process: the store first, then processors, then agents.",
    )
