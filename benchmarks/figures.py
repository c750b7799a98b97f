"""Figures: what was measured, its target, and what else was measured in the same run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Another way to the same result, measured in turns with the figure.

    Attributes:
        name: What it is.
        values: One per repetition, in the figure's unit.
        target: By which factor moescope is to be better; None: no target.
    """

    name: str
    values: list[float]
    target: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity.

    Attributes:
        what: What it is.
        unit: Of values and target.
        values: One per repetition.
        better: Which way is good.
        target: What it should reach; None: reported only.
        baselines: Measured in the same run.
        note: What has to be known to read it.
    """

    what: str
    unit: str
    values: list[float]
    better: Better = "higher"
    target: float | None = None
    baselines: list[Baseline] = field(default_factory=list)
    note: str = ""

    @property
    def best(self) -> float:
        """The best repetition."""
        return max(self.values) if self.better == "higher" else min(self.values)

    @property
    def median(self) -> float:
        """The median repetition."""
        return median(self.values)

    def verdict(self) -> str:
        """`yes`, `best run only`, `no`; empty without a target."""
        if self.target is None:
            return ""
        if self._reaches(self.median):
            return "yes"
        return "best run only" if self._reaches(self.best) else "no"

    def _reaches(self, value: float) -> bool:
        assert self.target is not None  # noqa: S101 (narrowing)
        return value >= self.target if self.better == "higher" else value <= self.target

    def ratios(self, baseline: Baseline) -> list[float]:
        """By which factor each repetition is better than the baseline's beside it."""
        pairs = zip(self.values, baseline.values, strict=True)
        if self.better == "higher":
            return [own / other for own, other in pairs]
        return [other / own for own, other in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a profiled run.

    Attributes:
        calls: How often it ran.
        cpu_s, wall_s: Seconds of its own, without the stages inside it.
    """

    name: str
    calls: int
    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the time of one run went."""

    title: str
    stages: list[Stage]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one benchmark gives.

    Attributes:
        topic: Its name, that of the module without `bench_`.
        title: Heading on the page.
        text: What was measured and how.
        order: Place on the page.
    """

    topic: str
    title: str
    text: str
    order: int
    figures: list[Figure]
    profiles: list[Profile] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    quick: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Result:
        """Undo `to_json`."""
        figures = [
            Figure(**(each | {"baselines": [Baseline(**other) for other in each["baselines"]]}))
            for each in values["figures"]
        ]
        profiles = [
            Profile(**(each | {"stages": [Stage(**stage) for stage in each["stages"]]}))
            for each in values["profiles"]
        ]
        return cls(**(values | {"figures": figures, "profiles": profiles}))
