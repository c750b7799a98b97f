"""The JSON twin of a calibration report, version 1: what the page shows, and all of its numbers.

Times are ISO 8601, UTC. Lists of numbers "per layer" follow `version.layers`; a number that does
not exist is null. Rates are shares, 0 … 1.
"""

from __future__ import annotations

from typing import Any, TypedDict

SCHEMA = "moescope calibration report"
SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes; new fields do not raise it."""

Numbers = list[float | None]
"""One per layer."""


class VersionFacts(TypedDict):
    """The threshold version that the report is about."""

    version: str
    status: str
    model: str
    revision: str
    origin: str
    fidelity: str
    sampling_ratio: float
    experts: int
    top_k: int
    layers: list[int]
    created_at: str
    author: str
    reason: str
    summary: dict[str, Any]
    in_force_from: str | None


class BaselineFacts(TypedDict):
    """The healthy traffic behind it."""

    baseline: str
    version: int
    created_at: str | None
    author: str
    reason: str
    selection: dict[str, Any]
    first_time: str | None
    last_time: str | None
    scenes: list[SceneShare]


class SceneShare(TypedDict):
    """What a scene contributed to a phase's baseline reference."""

    phase: str
    scene: str
    tokens: int
    share: float


class WindowsKey(TypedDict):
    """Which windows something holds for; as in table `thresholds`."""

    phase: str
    window_kind: str
    size: int
    stride: int
    scope_kind: str
    scene: str
    band: str


class Ends(TypedDict):
    """One line per layer, with its 95 % interval."""

    at: Numbers
    low: Numbers
    high: Numbers


class Line(TypedDict):
    """Lines of one metric."""

    metric: str
    title: str
    unit: str
    side: str
    alerts: bool
    standing: str
    sources: list[str]
    units: int
    windows: int
    worst_layer: int
    centre: Numbers
    spread: Numbers
    warn_high: Ends | None
    red_high: Ends | None
    warn_low: Ends | None
    red_low: Ends | None


class KeyLines(TypedDict):
    """Lines of one kind of window."""

    key: WindowsKey
    words: str
    lines: list[Line]


class Distribution(TypedDict):
    """How the baseline's values of one metric are distributed at its worst layer."""

    key: WindowsKey
    metric: str
    layer: int
    windows: int
    values: list[float]
    shares: list[float]


class Heat(TypedDict):
    """How near each window came to its red line."""

    key: WindowsKey
    metric: str
    closed: list[str]
    per_column: int
    shares: list[Numbers]
    levels: list[list[int]]


class Rate(TypedDict):
    """How often windows are past the lines of a metric, layer by layer."""

    key: WindowsKey
    metric: str
    windows: float
    warn: float
    red: float
    warn_nominal: float
    red_nominal: float
    warn_band: list[float] | None
    red_band: list[float] | None


class Paging(TypedDict):
    """A paging rule, and what it costs on healthy traffic."""

    phase: str
    window_kind: str
    size: int
    stride: int
    scope_kind: str
    family: str
    line: float
    needed: int
    of_slots: int
    expected_per_day: float
    bound_per_day: float
    only_bound: bool


class Timeline(TypedDict):
    """The paging statistic where this version has judged."""

    phase: str
    window_kind: str
    size: int
    stride: int
    scope_kind: str
    scope_value: str
    family: str
    slots: list[str]
    values: Numbers
    seconds_per_point: int


class Fired(TypedDict):
    """What would have fired."""

    baseline: list[Rate]
    held_out: list[Rate]
    paging: list[Paging]
    timelines: list[Timeline]


class Change(TypedDict):
    """A line that moved against the version before."""

    key: WindowsKey
    metric: str
    layer: int
    line: str
    before: float
    after: float
    in_spreads: float
    beyond_interval: bool


class Changes(TypedDict):
    """Everything that moved."""

    against: str | None
    compared: int
    beyond_interval: int
    appeared: int
    gone: int
    largest: list[Change]


class LeftOut(TypedDict):
    """Something that has no line, or did not enter, and why."""

    what: str
    why: str


class CalibrationReport(TypedDict):
    """The report."""

    schema: str
    schema_version: int
    version: VersionFacts
    baseline: BaselineFacts
    summary: list[str]
    judged: list[KeyLines]
    distributions: list[Distribution]
    heat: list[Heat]
    fired: Fired
    changes: Changes
    left_out: list[LeftOut]
    next_steps: list[NextStep]


class NextStep(TypedDict):
    """A command, and what it does."""

    command: str
    what: str
