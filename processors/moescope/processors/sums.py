"""Adding up a few arrays of equal shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    Integers = TypeVar("Integers", bound=NDArray[np.integer[Any]])


def sum_of(arrays: Sequence[Integers]) -> Integers:
    """The sum, of the arrays' type, in memory of its own.

    One by one: `numpy.sum` would copy them into one array first, which for two or three takes
    several times as long.

    Args:
        arrays: At least one, all of one shape and type.
    """
    total = arrays[0].copy()
    for array in arrays[1:]:
        np.add(total, array, out=total)
    return total
