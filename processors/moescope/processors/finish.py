"""Finishing: from the counts of closed windows to metric values and histogram increments."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.emission import FinishedWindows, HistogramKey, Histograms, WindowGroup
from moescope.core.vocabulary import WindowKind
from moescope.processors.finish_kernel import LayerReferences, finish_counts, layer_references
from moescope.processors.histogram_kernel import (
    NO_HISTOGRAM,
    add_to_histograms,
    empty_histograms,
)
from moescope.processors.kernels.records import MINUTE_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

REMEMBERED_REFERENCES = 256


class WindowFinisher:
    """The `Finisher` that processors and the store owner use.

    Prepared trailing references are remembered, since their noise floors cost milliseconds.
    """

    def __init__(self) -> None:
        self._references: OrderedDict[str, LayerReferences] = OrderedDict()

    def __call__(self, group: WindowGroup) -> tuple[FinishedWindows, Histograms]:
        """Metric values of each window, and the histogram increments of the complete ones."""
        values = finish_counts(
            group.counts,
            group.lane.top_k,
            dropped=group.dropped,
            trailing=self._reference(group),
        )
        tokens = group.counts.sum(axis=2, dtype=np.int64) // group.lane.top_k
        finished = FinishedWindows(group=group, values=values, tokens=tokens)
        return finished, histogram_increments(group, values)

    def _reference(self, group: WindowGroup) -> LayerReferences | None:
        if group.trailing is None:
            return None
        known = self._references.get(group.trailing_id)
        if known is None:
            known = layer_references(group.trailing, group.lane.top_k)
            self._references[group.trailing_id] = known
            if len(self._references) > REMEMBERED_REFERENCES:
                self._references.popitem(last=False)
        else:
            self._references.move_to_end(group.trailing_id)
        return known


def histogram_increments(
    group: WindowGroup, values: NDArray[np.float64], *, weight: int = 1
) -> Histograms:
    """Histogram increments of a group's windows.

    Args:
        group: Closed windows.
        values: float64 [W, L, M].
        weight: −1 takes back what was added.
    """
    keys: dict[HistogramKey, int] = {}
    histogram = np.full(len(group), NO_HISTOGRAM, np.int64)
    bands = group.bands
    for window in range(len(group)):
        if group.kind is WindowKind.TOKEN and not group.complete[window]:
            continue
        key = HistogramKey(
            lane=group.lane,
            phase=group.phase,
            minute_us=histogram_minute(group, window),
            kind=group.kind,
            size=group.size,
            stride=group.stride,
            scope_kind=group.scope_kind,
            scope_value=group.scope_value,
            band=bands[window],
        )
        histogram[window] = keys.setdefault(key, len(keys))
    if not keys:
        return {}
    increments = empty_histograms(len(keys), len(group.lane.layers))
    add_to_histograms(
        increments, values, histogram, group.lane.experts, group.lane.top_k, weight=weight
    )
    return {key: increments[index] for key, index in keys.items()}


def histogram_minute(group: WindowGroup, window: int) -> int:
    """Minute of a window's histogram: of its end for time windows, of its closing for others."""
    if group.kind is WindowKind.TIME:
        return int(group.start[window] + group.size) // MINUTE_US * MINUTE_US
    time = int(group.close_time_us[window])
    if group.kind is WindowKind.STEP or time == NO_TIME:
        return 0
    return time // MINUTE_US * MINUTE_US
