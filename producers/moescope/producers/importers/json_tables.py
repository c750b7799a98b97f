"""Whole numbers in nested lists, as JSON has them: looked through before an array is made of them.

numpy makes an array of anything: of one long text among a million short ones it makes a million
long ones, and of mixed kinds it makes text.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_MOST_AXES: Final = 8


class RaggedListsError(ValueError):
    """Lists of one level are of different lengths, or stand beside something else than lists."""


class NoIntegersError(ValueError):
    """Something in the lists is no whole number of 64 bits."""


def integers_of(lists: list[Any]) -> NDArray[np.int64]:
    """Whole numbers of nested lists of one shape; memory is that of the numbers, whatever is there.

    Args:
        lists: Of numbers, or of lists of one shape.

    Returns:
        int64, with an axis per level.

    Raises:
        RaggedListsError: They are of no one shape.
        NoIntegersError: They hold something else; true and false are no numbers.
    """
    shape = [len(lists)]
    while list in (kinds := set(map(type, _values(lists, len(shape))))):
        if len(kinds) > 1:
            message = f"lists beside {_names(kinds - {list})}"
            raise RaggedListsError(message)
        lengths = set(map(len, _values(lists, len(shape))))
        if len(lengths) > 1:
            message = f"lists of {min(lengths)} to {max(lengths)} values at level {len(shape) + 1}"
            raise RaggedListsError(message)
        if len(shape) == _MOST_AXES:
            message = f"lists within lists, more than {_MOST_AXES} levels"
            raise RaggedListsError(message)
        shape.append(lengths.pop())
    if kinds - {int}:
        message = f"a value is {_names(kinds - {int})}"
        raise NoIntegersError(message)
    size = int(np.prod(shape, dtype=np.int64))
    try:
        return np.fromiter(_values(lists, len(shape)), np.int64, size).reshape(shape)
    except OverflowError:
        message = "a number of more than 64 bits"
        raise NoIntegersError(message) from None


def _values(lists: list[Any], level: int) -> Iterable[Any]:
    """What lies in the lists of a level; 1 is the outermost."""
    found: Iterable[Any] = lists
    for _ in range(level - 1):
        found = chain.from_iterable(found)
    return found


def _names(kinds: set[type]) -> str:
    """JSON's kinds in its own words."""
    words = {
        str: "text",
        float: "a fraction",
        bool: "true or false",
        dict: "an object",
        type(None): "null",
        int: "a number",
    }
    return ", ".join(sorted(words.get(kind, kind.__name__) for kind in kinds))
