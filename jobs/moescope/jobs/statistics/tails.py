"""The loop of the band of rates, compiled: each resample walks down from the highest value."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

F = TypeVar("F", bound="Callable[..., object]")


def _compiled(function: F) -> F:
    """Machine code that is cached on disk, where a directory can be written."""
    try:
        return cast("F", njit(nogil=True, cache=True)(function))
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return cast("F", njit(nogil=True)(function))


@_compiled
def weight_past_line(  # noqa: PLR0917 (compiled code takes arrays one by one)
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    judged: NDArray[np.float64],
    units: NDArray[np.int64],
    drawn: NDArray[np.float64],
    tried: NDArray[np.float64],
    allowed: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Weight of one set of draws that is past the line which another set gives, float64 [B].

    A resample's line is the lowest value with no more than the allowed weight ranked above it.
    Only as many values are looked at as that takes.

    Args:
        values: float64 [N], falling.
        weights: float64 [N], of what makes the line.
        judged: float64 [N], of what is held against it.
        units: int64 [N].
        drawn: float64 [B, units], how often each is drawn for the line.
        tried: float64 [B, units], how often each is drawn for what is held against the line.
        allowed: float64 [B], weight of `drawn` that may be above the line.
    """
    last = len(values) - 1
    past = np.zeros(len(allowed))
    for resample in range(len(allowed)):
        above, over, strictly = 0.0, 0.0, 0.0
        for rank in range(last):
            unit = units[rank]
            above += drawn[resample, unit] * weights[rank]
            if above > allowed[resample]:
                break
            over += tried[resample, unit] * judged[rank]
            # Values equal to the line are not past it.
            if values[rank + 1] != values[rank]:
                strictly = over
        past[resample] = strictly
    return past
