"""Bytes to plain values: nothing is trusted, and no more memory taken than was asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from moescope.core.plain_codec.errors import PlainFormatError, damaged, too_new
from moescope.core.plain_codec.kinds import required_fields
from moescope.core.plain_codec.layout import (
    ALIGNMENT,
    ARRAY,
    BYTES,
    DEEPEST,
    DEFAULT_LIMITS,
    DICT,
    DIMENSIONS,
    DTYPES,
    FROZENSET,
    LIST,
    MAGIC,
    OBJECT,
    PLAIN,
    PREFIX,
    SHARED,
    TUPLE,
    VERSION,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.core.plain_codec.kinds import Kinds
    from moescope.core.plain_codec.layout import PlainLimits


def unpack(data: bytes, kinds: Kinds, limits: PlainLimits = DEFAULT_LIMITS) -> Any:
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
        raise damaged(f"{type(error).__name__}: {str(error)[:200]}") from error


def _inflated(data: bytes, limits: PlainLimits) -> tuple[bytes, int]:
    """The decompressed bytes, and how many of them are the head."""
    if len(data) < PREFIX.size:
        raise damaged("It is cut off.")
    magic, version, size, head_bytes = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise damaged("It does not begin as such a value does.")
    if version != VERSION:
        raise too_new(f"It has format {version}; this moescope reads {VERSION}.")
    if size > limits.inflated_bytes or head_bytes > min(limits.head_bytes, size):
        raise damaged(f"It declares {size:,} bytes, {head_bytes:,} of them its head.")
    frame = data[PREFIX.size :]
    try:
        # The library allocates what the frame declares, whatever it is told.
        if zstandard.frame_content_size(frame) != size:
            raise damaged("Its frame declares another size.")
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False), head_bytes
    except zstandard.ZstdError as error:
        raise damaged(str(error)) from error


class _Unpacker:
    """One value on its way back from bytes."""

    def __init__(self, kinds: Kinds, head: dict[str, Any], raw: bytes, head_bytes: int) -> None:
        self._depth = 0
        self._raw = raw
        self._makers = [_maker(kinds, *described) for described in head["kinds"]]
        self._forms = [_form(*each) for each in head["shapes"]]
        forms = [self._forms[_index(place)] for place in head["arrays"]]
        body = head_bytes + -head_bytes % ALIGNMENT
        starts = list(accumulate((form.padded for form in forms), initial=body))
        cuts = list(accumulate(map(_index, head["bytes"]), initial=starts[-1]))
        if cuts[-1] != len(raw):
            raise damaged("Its parts do not fill it.")
        # Each is taken once, in order: a value can be no larger than its bytes.
        self._arrays = zip(forms, starts[:-1], strict=True)
        self._blobs = pairwise(cuts)
        # None can refer to another: a chain of doublings would take forever to hash.
        self._shared: list[Any] = []
        self._shared = [self._made(each[0], each[1:]) for each in head["shared"]]

    def value(self, tree: Any) -> Any:
        """The value that a tree stands for."""
        kind = type(tree)
        if kind in PLAIN:
            return tree
        if kind is not list:
            raise damaged("Its head holds something else than values.")
        code = tree[0]
        if code == ARRAY:
            return self._array()
        if code == SHARED:
            return self._shared[_index(tree[1])]
        self._depth += 1
        if self._depth > DEEPEST:
            raise damaged(f"Its values lie more than {DEEPEST} deep in each other.")
        result = self._compound(code, tree)
        self._depth -= 1
        return result

    def _compound(self, code: Any, tree: list[Any]) -> Any:
        if code == OBJECT:
            return self._made(tree[1], tree[2:])
        if code == BYTES:
            begin, end = next(self._blobs)
            return self._raw[begin:end]
        values = [
            each if type(each) in PLAIN else self.value(each) for each in islice(tree, 1, None)
        ]
        if code == TUPLE:
            return tuple(values)
        if code == LIST:
            return values
        if code == DICT:
            return dict(zip(values[::2], values[1::2], strict=True))
        if code == FROZENSET:
            return frozenset(values)
        raise damaged("Its head holds an unknown sign.")

    def _made(self, number: Any, trees: list[Any]) -> Any:
        return self._makers[_index(number)](
            [each if type(each) in PLAIN else self.value(each) for each in trees]
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
        raise too_new(f"A {name} has the unknown fields {str(unknown)[:200]}.")
    if len(set(names)) != len(names):
        raise damaged(f"A {name} has a field twice.")
    if missing := required_fields(kind) - set(names):
        raise damaged(f"A {name} lacks {', '.join(sorted(missing))}.")
    texts = tuple(str(each) for each in names)
    checks = kinds.checks_of(kind)
    in_order = tuple(checks[each] for each in texts)

    def made(values: list[Any]) -> Any:
        for place, (check, value) in enumerate(zip(in_order, values, strict=True)):
            if not check(value):
                raise damaged(
                    f"The field {texts[place]} of a {name} holds a {type(value).__name__} that "
                    "does not belong there."
                )
        return kind(**dict(zip(texts, values, strict=True)))

    return made


@dataclass(frozen=True, slots=True)
class _Form:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    count: int
    padded: int


def _form(name: object, shape: list[Any]) -> _Form:
    if name not in DTYPES or len(shape) > DIMENSIONS:
        raise damaged(f"It holds an array of {str(name)[:80]!r}.")
    dtype = np.dtype(str(name))
    count = 1
    for each in shape:
        count *= _index(each)
    size = count * dtype.itemsize
    return _Form(dtype, tuple(shape), count, size + -size % ALIGNMENT)


def _index(value: object) -> int:
    if type(value) is not int or value < 0:
        raise damaged("It holds something else where a number belongs.")
    return value
