"""The last rows of each running request, repeated at the head of its next batch."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from moescope.producers.ring.rows import Columns

CONTEXT_ROWS: Final = 2
MAX_REQUESTS: Final = 16_384
_FIRST_CAPACITY: Final = 64


class ContextRows:
    """Up to two rows of each request, in column arrays; the least recently used request goes first.

    All rows have the same columns. When a batch comes with other ones, what is remembered cannot
    be repeated in it and is forgotten.

    Args:
        capacity: How many requests are remembered.
    """

    def __init__(self, capacity: int = MAX_REQUESTS) -> None:
        self._capacity = capacity
        self._slots: OrderedDict[str, int] = OrderedDict()
        self._free: list[int] = []
        self._size = 0
        self._count: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._columns: Columns = {}

    def __len__(self) -> int:
        """Number of requests remembered."""
        return len(self._slots)

    def gather(
        self, requests: Sequence[str], rows: int = CONTEXT_ROWS
    ) -> tuple[Columns, NDArray[np.intp]]:
        """The remembered last rows of requests, at most `rows` of each, oldest first.

        Returns:
            Columns, and for each row the index of its request in `requests`.
        """
        places: list[int] = []
        owners: list[int] = []
        for index, request in enumerate(requests):
            slot = self._slots.get(request)
            if slot is None:
                continue
            for back in range(min(rows, int(self._count[slot])), 0, -1):
                places.append(CONTEXT_ROWS * (slot + 1) - back)
                owners.append(index)
        chosen = np.array(places, np.intp)
        columns = {name: column[chosen] for name, column in self._columns.items()}
        return columns, np.array(owners, np.intp)

    def keep_columns(self, names: Sequence[str]) -> None:
        """Forget all other columns, but no request."""
        self._columns = {name: self._columns[name] for name in names if name in self._columns}

    def forget_all(self) -> None:
        """Remember nothing."""
        self.use_columns(frozenset())

    def use_columns(self, names: frozenset[str]) -> None:
        """Prepare for rows with these columns."""
        if names != self._columns.keys() and self._columns:
            self._slots.clear()
            self._free.clear()
            self._size = 0
            self._count = np.zeros(0, np.uint8)
            self._columns = {}

    def remember(
        self,
        requests: Sequence[str],
        last: NDArray[np.intp],
        before_last: NDArray[np.intp],
        columns: Columns,
    ) -> None:
        """Remember rows in place of what is remembered of the same requests.

        Args:
            requests: Request ids, each once.
            last: Index in `columns` of each request's last row.
            before_last: Of the row before it, or −1.
            columns: What to take the rows from.
        """
        self._prepare(columns, len(requests))
        slots = np.array([self._slot(request) for request in requests], np.intp)
        has_two = before_last >= 0
        self._count[slots] = 1 + has_two
        for name, stored in self._columns.items():
            stored[CONTEXT_ROWS * slots + 1] = columns[name][last]
            stored[CONTEXT_ROWS * slots[has_two]] = columns[name][before_last[has_two]]

    def forget(self, request: str) -> None:
        """A request is over."""
        slot = self._slots.pop(request, None)
        if slot is not None:
            self._free.append(slot)

    def _prepare(self, columns: Columns, more: int) -> None:
        needed = self._size + more
        capacity = len(self._count)
        if self._columns and needed <= capacity:
            return
        grown = min(max(needed, 2 * capacity, _FIRST_CAPACITY), self._capacity + more)
        old: dict[str, NDArray[Any]] = self._columns
        self._columns = {}
        for name, column in columns.items():
            stored = np.zeros((CONTEXT_ROWS * grown, *column.shape[1:]), column.dtype)
            if name in old:
                stored[: len(old[name])] = old[name]
            self._columns[name] = stored
        self._count = np.concatenate([self._count, np.zeros(grown - capacity, np.uint8)])

    def _slot(self, request: str) -> int:
        slot = self._slots.pop(request, None)
        if slot is None:
            if len(self._slots) >= self._capacity:
                slot = self._slots.popitem(last=False)[1]
            elif self._free:
                slot = self._free.pop()
            else:
                slot = self._size
                self._size += 1
        self._slots[request] = slot
        return slot
