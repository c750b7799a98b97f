"""One training run as a row of step windows, and when its sources, routing and load changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from moescope.core.vocabulary import UNKNOWN_SCENE
from moescope.jobs.statistics.cusum import (
    chi_square_score,
    self_starting_scores,
    threshold_for,
    upper_cusum,
)
from moescope.processors.metrics import divergence, smoothed_reference

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOWS_BETWEEN_FALSE_ALARMS: Final = 1_000
"""Of each of a run's sums, on average: METRICS call a thousand units firm."""


@dataclass(frozen=True)
class TrainingRun:
    """Step windows of one lane, W windows of L layers, in the order of their steps.

    Attributes:
        sources: Names of the scenes, S.
        sequences: float64 [W, S], sequences per source: a sequence has one source.
        counts: int64 [W, L, E].
        load_entropy: float64 [W, L].
        cold_experts: float64 [W, L], share of experts.
    """

    sources: tuple[str, ...]
    sequences: NDArray[np.float64]
    counts: NDArray[np.int64]
    load_entropy: NDArray[np.float64]
    cold_experts: NDArray[np.float64]

    @property
    def knows_sources(self) -> bool:
        """Whether every sequence's source was told."""
        return bool(self.sources) and UNKNOWN_SCENE not in self.sources

    @cached_property
    def mix_scores(self) -> NDArray[np.float64]:
        """How far each window's mix of sources is from the run's before it, [W] normal scores.

        Pearson's χ² of two samples, the window and all windows before; the unit is the sequence.
        While the data are shuffled the score is standard normal; 0 where sources are unknown.
        """
        scores = np.zeros(len(self.sequences))
        if len(self.sources) <= 1 or not self.knows_sources:
            return scores
        before = np.cumsum(self.sequences, axis=0) - self.sequences
        for window in range(1, len(scores)):
            table = np.stack([before[window], self.sequences[window]])
            table = table[:, table.sum(axis=0) > 0]
            if table.shape[1] > 1 and (table.sum(axis=1) > 0).all():
                expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
                statistic = ((table - expected) ** 2 / expected).sum()
                scores[window] = chi_square_score(statistic, table.shape[1] - 1)
        return scores

    @cached_property
    def routing_distance(self) -> NDArray[np.float64]:
        """Median over layers of the distance from the load before, in bits, [W]; 0 at first."""
        before = np.cumsum(self.counts, axis=0) - self.counts
        found = np.zeros(len(self.counts))
        for window in range(1, len(found)):
            reference = smoothed_reference(before[window])
            shift = divergence(self.counts[window], reference).js
            found[window] = float(np.median(shift))
        return found

    @cached_property
    def sources_moved(self) -> NDArray[np.bool_]:
        """Where the mix of sources is no longer that of shuffled data, [W]."""
        return upper_cusum(self.mix_scores) > threshold_for(WINDOWS_BETWEEN_FALSE_ALARMS)

    @cached_property
    def routing_moved(self) -> NDArray[np.bool_]:
        """Where the load is further from the load before than it used to be, [W]."""
        # The first window has nothing before it, and is no value.
        scores = self_starting_scores(self.routing_distance[1:])
        moved = upper_cusum(scores) > threshold_for(WINDOWS_BETWEEN_FALSE_ALARMS)
        return np.concatenate([np.zeros(min(1, len(self.counts)), np.bool_), moved])

    @cached_property
    def entropy_sums(self) -> NDArray[np.float64]:
        """Sums of the fall of each layer's load entropy, [W, L]."""
        return upper_cusum(self_starting_scores(-self.load_entropy))

    @cached_property
    def collapsing(self) -> NDArray[np.bool_]:
        """Layers whose load narrows: [W, L].

        The load entropy falls against the run's own history, and more experts are cold than in
        any window before the fall began. All layers together raise one false alarm in so many
        windows.
        """
        layers = self.counts.shape[1]
        threshold = threshold_for(WINDOWS_BETWEEN_FALSE_ALARMS * layers)
        most_cold = np.zeros(layers)
        found = np.zeros(self.entropy_sums.shape, np.bool_)
        for window, sums in enumerate(self.entropy_sums):
            found[window] = (sums > threshold) & (self.cold_experts[window] > most_cold)
            quiet = sums == 0
            most_cold[quiet] = np.maximum(most_cold, self.cold_experts[window])[quiet]
        return found
