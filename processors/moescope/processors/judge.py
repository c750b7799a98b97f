"""Judging closed windows: which values are past the lines in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.emission import Judgement
from moescope.core.metrics import JUDGED_METRICS, METRIC_NAMES, Family
from moescope.core.thresholds import LineKey
from moescope.core.vocabulary import ScopeKind, WindowKind
from moescope.processors.judge_rows import (
    PACKED,
    RED_HIGH,
    RED_LOW,
    SPREAD,
    WARN_HIGH,
    WARN_LOW,
    judge_rows,
)
from moescope.processors.remembering import Remembered
from moescope.processors.worst_of_slots import WorstOfWindows, worst_of_slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from moescope.core.emission import WindowGroup
    from moescope.core.thresholds import ThresholdBook, ThresholdVersion

REMEMBERED_LINES = 512
NO_LINES = -1

FAMILY_ORDER = tuple(Family)
"""Order of families in arrays."""

_NAMES = [metric.name for metric in JUDGED_METRICS]
_COLUMNS = np.array([METRIC_NAMES.index(name) for name in _NAMES], np.int64)
_FAMILY_OF = np.array(
    [-1 if each.family is None else FAMILY_ORDER.index(each.family) for each in JUDGED_METRICS],
    np.int64,
)
_NAME_ORDER = np.argsort(np.argsort(_NAMES)).astype(np.int64)
_ALERTING = np.uint64(sum(1 << bit for bit, each in enumerate(JUDGED_METRICS) if each.alerts))


class Judge:
    """Applies the thresholds of a book to finished windows; prepared lines are remembered.

    Args:
        book: Thresholds in force; read at each call.
        minimum_coverage: Shared windows that saw less of their tokens cannot page.
    """

    def __init__(self, book: ThresholdBook, *, minimum_coverage: float = 0.9) -> None:
        self._book = book
        self._minimum_coverage = minimum_coverage
        self._lines: Remembered[_LinesOf, NDArray[np.float64] | None] = Remembered(
            _packed_lines, REMEMBERED_LINES
        )

    def versions(self, group: WindowGroup) -> list[ThresholdVersion | None]:
        """The version in force when each window closed, [W]; none for windows without a time."""
        times = group.close_time_us.tolist()
        found = {
            time: None if time == NO_TIME else self._book.at(group.lane, time)
            for time in set(times)
        }
        return [found[time] for time in times]

    def judge(
        self,
        group: WindowGroup,
        values: NDArray[np.float64],
        versions: Sequence[ThresholdVersion | None],
    ) -> Judgement | None:
        """Levels of each metric, and what paging has to know of them.

        Args:
            group: Closed windows.
            values: float64 [W, L, M], their metrics.
            versions: [W], as `versions` gives them.

        Returns:
            None where no version was in force for any window.
        """
        if not any(versions):
            return None
        lines, lines_of = self._lines_of(group, versions)
        windows, layers, _ = values.shape
        bits = np.zeros((3, windows, layers), np.uint64)
        worst = WorstOfWindows(
            np.full((windows, len(FAMILY_ORDER)), -np.inf),
            np.full((windows, len(FAMILY_ORDER), 2), -1, np.int64),
        )
        judge_rows(
            np.ascontiguousarray(values),
            _COLUMNS,
            lines,
            lines_of,
            _FAMILY_OF,
            _NAME_ORDER,
            np.array(group.lane.layers, np.int64),
            bits,
            *worst,
        )
        names = ["" if version is None else version.version for version in versions]
        judged, warn, red = bits
        return Judgement(
            version=names,
            judged=judged,
            warn=warn,
            red=red,
            exceedances=worst_of_slots(
                group, names, judged, red, worst, minimum_coverage=self._minimum_coverage
            ),
        )

    def _lines_of(
        self, group: WindowGroup, versions: Sequence[ThresholdVersion | None]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Packed lines [S, L, J, PACKED], and which of them judge each window, [W]."""
        places: dict[_LinesOf, int] = {}
        sets: list[NDArray[np.float64]] = []
        lines_of = np.full(len(group), NO_LINES, np.int64)
        for window, key in enumerate(_line_keys(group)):
            version = versions[window]
            # Short token windows have no lines: their values depend on how short they are.
            if version is None or (group.kind is WindowKind.TOKEN and not group.complete[window]):
                continue
            wanted = _LinesOf(version, key)
            place = places.get(wanted)
            if place is None:
                lines = self._lines[wanted]
                place = NO_LINES if lines is None else len(sets)
                if lines is not None:
                    sets.append(lines)
                places[wanted] = place
            lines_of[window] = place
        shape = (0, len(group.lane.layers), len(JUDGED_METRICS), PACKED)
        return np.stack(sets) if sets else np.empty(shape), lines_of


def is_red(judgement: Judgement) -> NDArray[np.bool_]:
    """Windows with a value of an alerting metric past its red line, bool [W]."""
    return np.asarray(((judgement.red & _ALERTING) != 0).any(axis=1))


class _LinesOf(NamedTuple):
    """Lines of one kind of window; versions count as the same when they are the same object."""

    version: ThresholdVersion
    key: LineKey

    def __hash__(self) -> int:
        return hash((self.version.version, self.key))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _LinesOf) and self.version is other.version and self.key == other.key
        )


def _line_keys(group: WindowGroup) -> list[LineKey]:
    scenes = [group.scope_value] * len(group)
    if group.scope_kind is not ScopeKind.SCENE:
        scenes = [_only_scene(tokens) for tokens in group.scene_tokens] or [""] * len(group)
    return [
        LineKey(group.phase, group.kind, group.size, group.stride, group.scope_kind, scene, band)
        for scene, band in zip(scenes, group.bands, strict=True)
    ]


def _only_scene(tokens: Mapping[str, int]) -> str:
    present = [scene for scene, number in tokens.items() if number > 0]
    return present[0] if len(present) == 1 else ""


def _packed_lines(wanted: _LinesOf) -> NDArray[np.float64] | None:
    """Lines of all judged metrics, float64 [L, J, PACKED]; None where there are none at all."""
    lines = wanted.version.lines_for(wanted.key)
    packed = np.full((len(wanted.version.layers), len(JUDGED_METRICS), PACKED), np.nan)
    for place, name in enumerate(_NAMES):
        if name in lines:
            of_metric = lines[name]
            packed[:, place, WARN_LOW] = of_metric.warn_low
            packed[:, place, WARN_HIGH] = of_metric.warn_high
            packed[:, place, RED_LOW] = of_metric.red_low
            packed[:, place, RED_HIGH] = of_metric.red_high
            there = ~np.isnan(packed[:, place, :SPREAD]).all(axis=1)
            packed[:, place, SPREAD] = np.where(there, of_metric.spread, np.nan)
    return None if np.isnan(packed[..., SPREAD]).all() else packed
