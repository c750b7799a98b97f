"""Finishing: from the sums of closed windows to metric values, judgements and histograms."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.emission import FinishedWindows, HistogramKey, Histograms, WindowGroup
from moescope.core.metrics import METRIC_NAMES
from moescope.core.router_sums import LAGS
from moescope.core.thresholds import ThresholdBook
from moescope.core.vocabulary import WindowKind
from moescope.processors.baseline_mixes import BaselineMixes
from moescope.processors.finish_kernel import LayerReferences, finish_counts, layer_references
from moescope.processors.histogram_kernel import (
    NO_HISTOGRAM,
    add_to_histograms,
    empty_histograms,
)
from moescope.processors.judge import Judge, is_red
from moescope.processors.kernels.records import MINUTE_US
from moescope.processors.metrics import (
    averages_of_sums,
    lag_overlap,
    pass_imbalance,
    positional_agreement,
    rank_imbalance,
    request_similarity,
)
from moescope.processors.remembering import Remembered

if TYPE_CHECKING:
    from numpy.typing import NDArray

REMEMBERED_REFERENCES = 256

_COLUMN = {name: column for column, name in enumerate(METRIC_NAMES)}


class WindowFinisher:
    """The `Finisher` that processors and the store owner use.

    Prepared trailing references, baselines and lines are remembered, since preparing them costs
    milliseconds.
    """

    def __init__(self, book: ThresholdBook | None = None, *, minimum_coverage: float = 0.9) -> None:
        """Make a finisher.

        Args:
            book: Thresholds in force; read at each call. None: nothing is judged.
            minimum_coverage: Shared windows that saw less cannot page. Nor is a layer judged at
                which fewer rows are counted, since the others were lost or suspicious there.
        """
        self._minimum_coverage = minimum_coverage
        self._references: Remembered[_TrailingKey, LayerReferences] = Remembered(
            lambda key: layer_references(key.counts, key.top_k), REMEMBERED_REFERENCES
        )
        self._judge = Judge(
            ThresholdBook() if book is None else book, minimum_coverage=minimum_coverage
        )
        self._baselines = BaselineMixes()

    def __call__(self, group: WindowGroup) -> tuple[FinishedWindows, Histograms]:
        """Metric values of each window, and the histogram increments of the complete ones.

        A red token window is stored in any case, and then stands for itself alone.
        """
        versions = self._judge.versions(group)
        expected = self._baselines.expected(group, versions)
        tokens = group.counts.sum(axis=2, dtype=np.int64) // group.lane.top_k
        values = finish_counts(
            group.counts,
            group.lane.top_k,
            dropped=group.dropped,
            trailing=self._reference(group),
            mixes=None if expected is None else expected.mixes,
        )
        columns = _metrics_of_sums(group)
        if expected is not None:
            columns["mix_shift"] = expected.mix_shift
        for name, column in columns.items():
            values[..., _COLUMN[name]] = np.where(tokens > 0, column, np.nan)
        judgement = self._judge.judge(group, self._judgeable(group, tokens, values), versions)
        increments = histogram_increments(group, values)
        if judgement is not None and group.kind is WindowKind.TOKEN:
            # All of them are kept, so that one in the sample stands for no other: sums of
            # weights stay unbiased whatever is red.
            group = replace(group, weight=np.where(is_red(judgement), 1.0, group.weight))
        finished = FinishedWindows(
            group=group,
            values=values,
            tokens=tokens,
            lag_overlap=_lag_overlap(group),
            judgement=judgement,
        )
        return finished, increments

    def _judgeable(
        self, group: WindowGroup, tokens: NDArray[np.int64], values: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The values without those of layers at which too few rows are counted.

        Where the window saw too few, its layers are held against what it saw: its level says
        `insufficient` whatever they are past, and what that is remains worth knowing.
        """
        due = np.where(group.is_covered(self._minimum_coverage), group.expected, group.seen)
        too_few = tokens < self._minimum_coverage * due[:, None]
        return np.where(too_few[..., None], np.nan, values) if too_few.any() else values

    def _reference(self, group: WindowGroup) -> LayerReferences | None:
        if group.trailing is None:
            return None
        return self._references[_TrailingKey(group.trailing_id, group.trailing, group.lane.top_k)]


class _TrailingKey(NamedTuple):
    """A trailing reference by its id."""

    reference_id: str
    counts: NDArray[np.int64]
    top_k: int

    def __hash__(self) -> int:
        return hash(self.reference_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TrailingKey) and self.reference_id == other.reference_id


def _metrics_of_sums(group: WindowGroup) -> dict[str, NDArray[np.float64]]:
    """Metrics of the sums beside the counts, by name; [W, L], NaN where a window has none."""
    layers, experts, top_k = len(group.lane.layers), group.lane.experts, group.lane.top_k
    columns = {} if group.router is None else averages_of_sums(group.router, top_k)
    for window, positions in enumerate(group.positions):
        if positions is not None:
            column = columns.setdefault("positional_agreement", _null(group))
            column[window] = positional_agreement(positions, top_k, layers, experts)
    for window, panes in enumerate(group.similarity):
        if panes:
            column = columns.setdefault("request_similarity", _null(group))
            column[window] = request_similarity(panes)
    for window, passes in enumerate(group.passes):
        if passes is not None:
            mean, largest = pass_imbalance(passes)
            columns.setdefault("pass_imbalance", _null(group))[window] = mean
            columns.setdefault("pass_imbalance_max", _null(group))[window] = largest
    if group.placement is not None:
        columns["rank_imbalance"] = rank_imbalance(
            group.counts, top_k, group.placement.rank_of, group.placement.ranks
        )
    return columns


def _lag_overlap(group: WindowGroup) -> NDArray[np.float64] | None:
    if all(lags is None for lags in group.lags):
        return None
    overlap = np.full((len(group), len(group.lane.layers), LAGS), np.nan)
    for window, lags in enumerate(group.lags):
        if lags is not None:
            overlap[window] = lag_overlap(lags, group.lane.top_k)
    return overlap


def _null(group: WindowGroup) -> NDArray[np.float64]:
    return np.full((len(group), len(group.lane.layers)), np.nan)


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
