"""Plain values to bytes."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from moescope.core.errors import InternalError
from moescope.core.plain_codec.layout import (
    ALIGNMENT,
    ARRAY,
    BYTES,
    DEFAULT_LIMITS,
    DICT,
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
    from collections.abc import Callable, Iterable, Mapping

    from moescope.core.plain_codec.kinds import Kinds
    from moescope.core.plain_codec.layout import PlainLimits


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
    raw = b"".join([head, b"\0" * (-len(head) % ALIGNMENT), *packer.bodies, *packer.blobs])
    if len(raw) > limits.inflated_bytes or len(head) > limits.head_bytes:
        raise InternalError(
            f"A value of {len(raw):,} bytes is too large to be sent.",
            why=f"The limit is {limits.inflated_bytes:,} bytes, {limits.head_bytes:,} of its head.",
            next_step="Commit more often: processor.commit_records.",
        )
    return PREFIX.pack(MAGIC, VERSION, len(raw), len(head)) + zstandard.ZstdCompressor(
        level=1
    ).compress(raw)


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
            tuple: lambda value: [TUPLE, *self._trees(value)],
            list: lambda value: [LIST, *self._trees(value)],
            frozenset: lambda value: [FROZENSET, *self._trees(value)],
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

    def tree(self, value: Any) -> Any:
        """A value as JSON has it."""
        kind = type(value)
        if kind in PLAIN:
            return value
        handler = self._handlers.get(kind)
        if handler is None:
            handler = self._handlers[kind] = self._handler_of(kind)
        return handler(value)

    def _trees(self, values: Iterable[Any]) -> list[Any]:
        # Most values are plain: asking here saves a call for each.
        return [each if type(each) in PLAIN else self.tree(each) for each in values]

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
            return lambda value: [OBJECT, number, *self._trees(value)]
        return lambda value: [
            OBJECT,
            number,
            *self._trees([getattr(value, name) for name in names]),
        ]

    def _shared_object(
        self,
        value: Any,
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
        return [SHARED, place]

    def _mapping(self, value: Mapping[Any, Any]) -> list[Any]:
        tree: list[Any] = [DICT]
        for key, each in value.items():
            tree += (self.tree(key), self.tree(each))
        return tree

    def _bytes(self, value: bytes) -> list[Any]:
        self.blobs.append(value)
        return [BYTES]

    def _array(self, value: np.ndarray[Any, Any]) -> list[Any]:
        form = (value.dtype.str, value.shape)
        place = self._forms.get(form)
        if place is None:
            if form[0] not in DTYPES:
                raise InternalError(f"An array of {value.dtype} cannot be sent.")
            place = self._forms[form] = len(self._forms)
        self.arrays.append(place)
        self.bodies.append(value.tobytes())
        if unaligned := value.nbytes % ALIGNMENT:
            self.bodies.append(b"\0" * (ALIGNMENT - unaligned))
        return [ARRAY]
