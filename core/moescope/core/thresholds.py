"""Calibrated lines and references as plain values: jobs make them, window closing applies them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from moescope.core.emission import LaneKey


class Standing(StrEnum):
    """How much a line can be trusted."""

    FIRM = "firm"
    """At least 1,000 sampling units."""
    PROVISIONAL = "provisional"
    """Fewer: good for looking, uncertain in the tail."""


class LineSource(StrEnum):
    """Which values a line was taken from; all but the first after standardising each layer."""

    OWN = "own"
    """The layer's own windows of this scene."""
    ALL_SCENES = "all scenes"
    """The layer's windows of all scenes."""
    LAYER_BAND = "layer band"
    """Neighbouring layers together."""
    MODEL = "model"
    """All layers together."""


class ThresholdScope(NamedTuple):
    """What a threshold version belongs to: everything of a lane but domain and layer list."""

    model: str
    revision: str
    origin: str
    fidelity: str
    sampling_ratio: float

    @classmethod
    def of(cls, lane: LaneKey) -> ThresholdScope:
        """The scope of a lane's windows."""
        return cls(lane.model, lane.revision, lane.origin, lane.fidelity, lane.sampling_ratio)


class LineKey(NamedTuple):
    """Which windows a set of lines judges.

    Attributes:
        phase, kind, size, stride: As in `windows`.
        scope_kind: Lines of scope `node` hold for every node; of scope `scene` for `scene`.
        scene: The scene that all rows share, or "" for windows of any or mixed scenes.
        band: Volume band; "" for token windows.
    """

    phase: str
    kind: str
    size: int
    stride: int
    scope_kind: str
    scene: str
    band: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLines:
    """Lines of one metric for the L layers of a model.

    A value past a line is strictly above a `high` or strictly below a `low` one.

    Attributes:
        warn_low, warn_high, red_low, red_high: float64 [L]; NaN where there is no line.
        centre: float64 [L], the baseline's median.
        spread: float64 [L], 1.4826 × the baseline's median absolute deviation; positive.
        standing, source: As the units allow.
        units: Sampling units that the lines rest on.
    """

    warn_low: NDArray[np.float64]
    warn_high: NDArray[np.float64]
    red_low: NDArray[np.float64]
    red_high: NDArray[np.float64]
    centre: NDArray[np.float64]
    spread: NDArray[np.float64]
    standing: Standing
    source: LineSource
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineReference:
    """Expert loads of a baseline by scene, for one phase.

    Attributes:
        scenes: Scene → counts int64 [L, E].
        tokens: Scene → tokens in the baseline: its traffic mix.
    """

    scenes: Mapping[str, NDArray[np.int64]]
    tokens: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingRule:
    """When the exceedances of one family page.

    In each slot of `SLOT_US` the statistic is the worst layer's standardised exceedance. It is
    over the line when it is greater than `line`. An alert fires after `needed` of the last `of`
    slots with data were over.

    Attributes:
        line: In spreads past the red line.
        needed, of: k-of-n.
        expected_per_day: False pages per day on the baseline's blocks.
        bound_per_day: One-sided upper 95 % bound of that rate.
        only_bound: The baseline spans less than 3 / budget days: only the bound is known.
    """

    phase: str
    kind: str
    size: int
    stride: int
    scope_kind: str
    family: str
    line: float
    needed: int
    of: int
    expected_per_day: float
    bound_per_day: float
    only_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdVersion:
    """One immutable calibration.

    Attributes:
        version: Its name, unique in a store: `t-` and a number.
        scope: What it belongs to.
        layers: MoE layers; the order of all arrays.
        experts, top_k: Shape of the model.
        lines: Lines by windows and metric.
        references: Baseline reference by phase.
        paging: Rules.
    """

    version: str
    scope: ThresholdScope
    layers: tuple[int, ...]
    experts: int
    top_k: int
    lines: Mapping[LineKey, Mapping[str, MetricLines]]
    references: Mapping[str, BaselineReference]
    paging: tuple[PagingRule, ...] = ()

    def fits(self, lane: LaneKey) -> bool:
        """Whether it judges windows of this lane."""
        return (
            ThresholdScope.of(lane) == self.scope
            and lane.layers == self.layers
            and (lane.experts, lane.top_k) == (self.experts, self.top_k)
        )

    def lines_for(self, key: LineKey) -> Mapping[str, MetricLines]:
        """Lines of a kind of window: its scene's, completed by those of all scenes."""
        own = self.lines.get(key, _NO_LINES)
        if not key.scene or key.scope_kind == "scene":
            return own
        return {**self.lines.get(key._replace(scene=""), _NO_LINES), **own}


_NO_LINES: Mapping[str, MetricLines] = MappingProxyType({})


class Activation(NamedTuple):
    """From this event time on a version is in force; version "" switches judging off."""

    effective_from_us: int
    version: str


class ThresholdBook:
    """The versions in force, by event time. Reading needs no lock: snapshots are replaced whole."""

    def __init__(self) -> None:
        self._versions: Mapping[str, ThresholdVersion] = {}
        self._activations: Mapping[ThresholdScope, tuple[Activation, ...]] = {}
        self._edition = 0

    @property
    def edition(self) -> int:
        """Raised by each replacement."""
        return self._edition

    def replace(
        self,
        versions: Mapping[str, ThresholdVersion],
        activations: Mapping[ThresholdScope, tuple[Activation, ...]],
    ) -> None:
        """Take over everything that is stored.

        Args:
            versions: By name.
            activations: Per scope; later entries win at equal times.
        """
        ordered = {
            scope: tuple(sorted(listed, key=lambda each: each.effective_from_us))
            for scope, listed in activations.items()
        }
        self._versions, self._activations = dict(versions), ordered
        self._edition += 1

    def at(self, lane: LaneKey, time_us: int) -> ThresholdVersion | None:
        """The version in force for a lane's window that ends at `time_us`, if any."""
        versions, activations = self._versions, self._activations
        found: ThresholdVersion | None = None
        for activation in activations.get(ThresholdScope.of(lane), ()):
            if activation.effective_from_us > time_us:
                break
            found = versions.get(activation.version)
        return found if found is not None and found.fits(lane) else None
