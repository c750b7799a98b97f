"""What the baselines in force expect of the traffic of closed windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.processors.metrics import (
    UNKNOWN_MIX,
    DistinctMixes,
    baseline_loads,
    distinct_mixes,
    mix_shift,
)
from moescope.processors.remembering import Remembered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from moescope.core.emission import WindowGroup
    from moescope.core.thresholds import BaselineReference, ThresholdVersion
    from moescope.processors.metrics import BaselineLoads

REMEMBERED_BASELINES = 64


class ExpectedLoads(NamedTuple):
    """Of W windows.

    Attributes:
        mixes: The scene mix of each.
        mix_shift: float64 [W, L]; NaN where the mix is unknown.
    """

    mixes: DistinctMixes
    mix_shift: NDArray[np.float64]


class BaselineMixes:
    """Mixes baseline loads for closed windows; smoothed loads are remembered."""

    def __init__(self) -> None:
        self._loads: Remembered[_Known, BaselineLoads] = Remembered(
            lambda known: baseline_loads(known.reference), REMEMBERED_BASELINES
        )

    def expected(
        self, group: WindowGroup, versions: Sequence[ThresholdVersion | None]
    ) -> ExpectedLoads | None:
        """What each window's traffic looked like in the baseline of the version in force.

        Args:
            group: Closed windows; without scene tokens nothing is expected of them.
            versions: [W], of each window.

        Returns:
            None where nothing is expected of any window.
        """
        if not group.scene_tokens:
            return None
        by_version: dict[_Known, list[int]] = {}
        for window, version in enumerate(versions):
            if version is not None and group.phase in version.references:
                reference = version.references[group.phase]
                by_version.setdefault(_Known(reference), []).append(window)
        place = np.full(len(group), UNKNOWN_MIX, np.int64)
        shift = np.full((len(group), len(group.lane.layers)), np.nan)
        loads: list[NDArray[np.float64]] = []
        number = 0
        for known, windows in by_version.items():
            baseline = self._loads[known]
            own, q = distinct_mixes(baseline, [group.scene_tokens[each] for each in windows])
            if not len(q):
                continue
            mixed = np.flatnonzero(own != UNKNOWN_MIX)
            rows = np.array(windows)[mixed]
            place[rows] = own[mixed] + number
            shift[rows] = mix_shift(baseline, q)[own[mixed]]
            loads.append(q)
            number += len(q)
        if not loads:
            return None
        return ExpectedLoads(DistinctMixes(place, np.concatenate(loads)), shift)


class _Known:
    """A reference as a key: the very object, which holds arrays and has no hash of its own."""

    __slots__ = ("reference",)

    def __init__(self, reference: BaselineReference) -> None:
        self.reference = reference

    def __hash__(self) -> int:
        return id(self.reference)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and other.reference is self.reference
