"""Things that are costly to prepare and needed again soon."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """The values of the keys that were asked for last; safe for several threads."""

    def __init__(self, make: Callable[[K], V], most: int) -> None:
        """Start empty.

        Args:
            make: Prepares the value of a key; may run twice for a key that two threads ask for.
            most: How many to keep.
        """
        self._make = make
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        """The value of a key, prepared now if it is not known."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = self._make(key)
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        return value
