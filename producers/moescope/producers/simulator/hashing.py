"""Counter-based randomness: a value is a function of what it belongs to, never of call order.

Routing drawn this way does not depend on how rows are cut into batches, and the same prompt
prefix always takes the same route, as in a real model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): uint64 in, well mixed uint64 out."""
    mixed = values + _STEP
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


def combine(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash of two columns of the same length."""
    return mix(left + mix(right))


def seed_from(*parts: int) -> int:
    """One 64-bit seed from several integers."""
    state = np.zeros(1, np.uint64)
    for part in parts:
        state = combine(state, np.array([part & (2**64 - 1)], np.uint64))
    return int(state[0])


def unit_interval(values: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Hashes as floats in [0, 1)."""
    return (values >> np.uint64(11)).astype(np.float64) * 2.0**-53
