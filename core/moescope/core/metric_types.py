"""What a metric of the registry is declared with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Side(StrEnum):
    """Where a metric's bad values are; `none` marks context that is never judged."""

    HIGH = "high"
    LOW = "low"
    BOTH = "both"
    NONE = "none"


class Needs(StrEnum):
    """What a metric is computed from; where that is missing, the metric is null."""

    COUNTS = "counts"
    DROPS = "drops"
    REFERENCE = "reference"
    SCORES = "router scores"
    PAIRS = "consecutive rows"
    RANKS = "rank order"
    POSITIONS = "requests at the same position"
    REQUESTS = "concurrent requests"
    PASSES = "pass ids"
    PLACEMENT = "expert placement"


class Reference(StrEnum):
    """The expert distribution that a window's divergence is measured against."""

    UNIFORM = "uniform"
    TRAILING = "trailing"
    BASELINE = "baseline"


class Family(StrEnum):
    """What kind of fault a metric's exceedances speak of; one page per family, not per metric."""

    LOAD = "load"
    ROUTING = "routing"
    REPETITION = "repetition"
    ROUTER = "router"


class Scale(StrEnum):
    """How a histogram's bins divide its range."""

    LINEAR = "linear"
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSpec:
    """The range of a metric's histogram.

    Attributes:
        scale: Bins of equal width or of equal ratio.
        low, high: The range; None takes the metric's attainable bound for E and k.
    """

    scale: Scale = Scale.LINEAR
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One stored metric.

    Attributes:
        name: Column of the `windows` table, and key everywhere else.
        title: For people.
        formula: In the symbols of this module.
        unit: What a value counts or is a share of.
        side: Where bad values are. Any side but `none` gets thresholds and levels.
        version: Raised whenever a formula change makes old and new values incomparable.
        needs: What it is computed from.
        bounds: (E, k) → the attainable (low, high); NaN where the metric is undefined.
        summary: One line, what it tells.
        histogram: None for context that has no histogram.
        alerts: Whether its exceedances count towards levels and alerts. A metric that has a side
            but does not alert carries the same information as one that does, or informs only.
        family: Which paging statistic its exceedances enter; None where it does not alert.
        reference: What a divergence, or its noise floor, is measured against.
        noise_floor: The column with the value that chance alone gives.
    """

    name: str
    title: str
    formula: str
    unit: str
    side: Side
    version: int
    needs: Needs
    bounds: Callable[[int, int], tuple[float, float]]
    summary: str
    histogram: HistogramSpec | None
    alerts: bool
    family: Family | None = None
    reference: Reference | None = None
    noise_floor: str | None = None

    @property
    def sql_type(self) -> str:
        """DuckDB type of the column; null where the metric is undefined."""
        return "DOUBLE"

    @property
    def description(self) -> str:
        """One line for column comments and table references."""
        bad = {
            Side.HIGH: "; high is bad",
            Side.LOW: "; low is bad",
            Side.BOTH: "; both ends are bad",
            Side.NONE: "",
        }[self.side]
        return f"{self.summary} ({self.unit}{bad})"
