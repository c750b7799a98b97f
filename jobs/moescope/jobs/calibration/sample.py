"""Baseline windows with their sampling units and every judged metric."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.thresholds import LineKey
from moescope.core.vocabulary import ScopeKind, WindowKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from moescope.jobs.baselines import BaselineWindows


class UnitKind(StrEnum):
    """What is drawn independently when a baseline is drawn again."""

    REQUEST = "request"
    TASK = "task"
    BLOCK = "block"


UNIT_OF = {
    WindowKind.TOKEN: UnitKind.REQUEST,
    WindowKind.TASK: UnitKind.TASK,
    WindowKind.TIME: UnitKind.BLOCK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One kind of window of a baseline.

    Attributes:
        windows: As read.
        units: int64 [W], from 0.
        values: Metric → float64 [W, L], shifts included.
    """

    windows: BaselineWindows
    units: NDArray[np.int64]
    values: Mapping[str, NDArray[np.float64]]

    @property
    def unit_count(self) -> int:
        """Number of sampling units."""
        return len(np.unique(self.units))

    @property
    def scenes(self) -> NDArray[np.object_]:
        """[W] the scene that all rows share, or empty."""
        whole = self.windows.scope_kind == ScopeKind.SCENE
        return self.windows.scope_value if whole else self.windows.scene

    def key(self, scene: str, band: str) -> LineKey:
        """Key of lines for these windows."""
        w = self.windows
        return LineKey(w.phase, w.kind, w.size, w.stride, w.scope_kind, scene, band)

    def cells(self) -> Iterator[tuple[LineKey, NDArray[np.bool_]]]:
        """Each key that gets lines of its own, and its windows: bool [W].

        Windows over several scenes are judged by the lines of scene "", which hold for windows of
        any scene; per scene there are lines for token and task windows and for scope `scene`.
        """
        w = self.windows
        by_scene = w.scope_kind == ScopeKind.SCENE or w.kind in {WindowKind.TOKEN, WindowKind.TASK}
        scenes = self.scenes
        for band in sorted(set(w.band.tolist())):
            here = w.band == band
            if w.scope_kind != ScopeKind.SCENE:
                yield self.key("", band), here
            if by_scene:
                for scene in sorted(set(scenes[here].tolist()) - {""}):
                    yield self.key(scene, band), here & (scenes == scene)


def sampling_units(windows: BaselineWindows, block_us: int) -> NDArray[np.int64]:
    """Unit of each window, int64 [W] from 0: its request, its task, or its block of event time."""
    unit = UNIT_OF[WindowKind(windows.kind)]
    if unit is UnitKind.BLOCK:
        labels = windows.first_us // block_us
    else:
        names = windows.request if unit is UnitKind.REQUEST else windows.task
        labels = np.array([f"{a}\x1f{b}" for a, b in zip(windows.lane, names, strict=True)])
    _, codes = np.unique(labels, return_inverse=True)
    return codes.reshape(-1).astype(np.int64)


def is_timed(windows: BaselineWindows) -> NDArray[np.bool_]:
    """Which windows have event times, bool [W]."""
    timed: NDArray[np.bool_] = (windows.first_us != NO_TIME) & (windows.last_us != NO_TIME)
    return timed
