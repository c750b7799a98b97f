"""Do lines hold on healthy windows that they were not made from?"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moescope.core.errors import InputError, InsufficientDataError
from moescope.core.metrics import BY_NAME, Side
from moescope.jobs.baselines import model_shape, read_baseline
from moescope.jobs.calibration.line_pools import JudgedBy, pools_of
from moescope.jobs.calibration.lines import RED_SHARE, WARN_SHARE
from moescope.jobs.calibration.options import CalibrationOptions
from moescope.jobs.calibration.samples import read_samples, shifted_by
from moescope.jobs.statistics import (
    MINIMUM_UNITS,
    TwoSamples,
    draw_two_samples,
    rate_bands,
)
from moescope.storage.control import read_versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb
    from numpy.typing import NDArray

    from moescope.core.thresholds import LineKey, MetricLines, ThresholdVersion
    from moescope.jobs.baselines import Baseline
    from moescope.jobs.calibration.sample import Sample

LINES = {"warn": WARN_SHARE, "red": RED_SHARE}
NO_LINE = "no line for these windows"
FEW_UNITS = "fewer units than a rate needs"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRate:
    """How often one metric of one kind of window was past a line, over scenes, bands and layers.

    Attributes:
        line: `warn` or `red`.
        nominal: What a perfect line gives: 0.10 and 0.01 (a metric with two bad sides: twice).
        rate: Share of held-out (window, layer) pairs past the line.
        low, high: Where that share lies 95 times in 100 if nothing differs (`rate_bands`).
        inside: Whether it does.
        windows: Held-out windows that were judged. units: Their sampling units.
        calibration_units: Units behind the lines.
    """

    phase: str
    window_kind: str
    size: int
    stride: int
    scope_kind: str
    metric: str
    line: str
    nominal: float
    rate: float
    low: float
    high: float
    inside: bool
    windows: int
    units: int
    calibration_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutLeftOut:
    """Held-out windows that were not tried, or too few to say anything.

    Attributes:
        metric: Empty: the whole kind of window.
        units: Their sampling units; of a metric, those that were judged.
        why: `NO_LINE` or `FEW_UNITS`.
    """

    phase: str
    window_kind: str
    size: int
    stride: int
    scope_kind: str
    metric: str
    units: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Result of a held-out check.

    Attributes:
        version: Threshold version.
        baseline: Name of the held-out selection.
        rates: Per kind of window, metric and line.
        left_out: Kinds of window and metrics without a rate.
    """

    version: str
    baseline: str
    rates: tuple[HeldOutRate, ...]
    left_out: tuple[HeldOutLeftOut, ...] = ()

    @property
    def outside(self) -> tuple[HeldOutRate, ...]:
        """Rates that chance does not explain; one in twenty is."""
        return tuple(rate for rate in self.rates if not rate.inside)

    def to_json(self) -> dict[str, Any]:
        """For `summary_json` and reports."""
        return {
            "baseline": self.baseline,
            "outside": len(self.outside),
            "rates": [asdict(rate) for rate in self.rates],
            "minimum_units": MINIMUM_UNITS,
            "left_out": [asdict(each) for each in self.left_out],
        }


def held_out_check(
    cursor: duckdb.DuckDBPyConnection,
    version: str,
    selection: Baseline,
    *,
    options: CalibrationOptions | None = None,
    seed: int = 0,
) -> HeldOut:
    """Try the lines of a stored version on other healthy windows.

    Args:
        cursor: A connection for reading.
        version: Name of the version.
        selection: Windows that are healthy and were not in its baseline.
        options: Blocks, coverage and resamples; the defaults of the settings.
        seed: Of the resamples; the same seed gives the same bands.

    Raises:
        InputError: No such version.
        InsufficientDataError: The selection holds no window that the version judges.
    """
    options = options or CalibrationOptions()
    stored = read_versions(cursor, [version]).get(version)
    if stored is None:
        raise InputError(
            f"There is no threshold version {version!r}.",
            next_step="`moescope threshold list` shows the versions.",
        )
    row = cursor.execute(
        "SELECT baseline, baseline_version, summary_json FROM threshold_versions WHERE version = ?",
        [version],
    ).fetchone()
    assert row is not None  # noqa: S101 (read above)
    baseline = read_baseline(cursor, row[0], row[1])
    options = _as_calibrated(options, json.loads(row[2]))
    calibrated = read_samples(
        cursor, baseline, model_shape(cursor, baseline, stored.scope), options
    ).samples
    tried = _read_held_out(cursor, stored, selection, options)
    return check_lines(stored, calibrated, tried, selection.name, options=options, seed=seed)


def _as_calibrated(options: CalibrationOptions, summary: dict[str, Any]) -> CalibrationOptions:
    return CalibrationOptions(
        block_us=int(summary.get("block_us", options.block_us)),
        minimum_units=options.minimum_units,
        resamples=options.resamples,
        minimum_coverage=float(summary.get("minimum_coverage", options.minimum_coverage)),
        budget_per_day=options.budget_per_day,
    )


def _read_held_out(
    cursor: duckdb.DuckDBPyConnection,
    version: ThresholdVersion,
    selection: Baseline,
    options: CalibrationOptions,
) -> list[Sample]:
    shape = model_shape(cursor, selection, version.scope)
    if (shape.layers, shape.experts, shape.top_k) != (
        version.layers, version.experts, version.top_k,
    ):  # fmt: skip
        raise InputError(
            f"Selection {selection.name!r} is of another model shape than {version.version}.",
            why=f"It has layers {shape.layers}, E = {shape.experts}, k = {shape.top_k}.",
        )
    read = read_samples(cursor, selection, shape, options)
    return [shifted_by(sample, version.references) for sample in read.samples]


def check_lines(
    version: ThresholdVersion,
    calibrated: Sequence[Sample],
    held_out: Sequence[Sample],
    name: str,
    *,
    options: CalibrationOptions,
    seed: int,
) -> HeldOut:
    """The check on windows that are in memory: shifts of calibration windows cross-fitted.

    Raises:
        InsufficientDataError: Nothing is judged.
    """
    by_kind = {sample.key("", "")[:5]: sample for sample in calibrated}
    rates: list[HeldOutRate] = []
    left_out: list[HeldOutLeftOut] = []
    for sample in held_out:
        same = by_kind.get(sample.key("", "")[:5])
        cells = [] if same is None else _judged_cells(version, same, sample)
        if same is None or not cells:
            left_out.append(_left_out(sample, "", sample.unit_count, NO_LINE))
            continue
        drawn = draw_two_samples(
            np.unique(same.units),
            np.unique(sample.units) + same.units.max() + 1,
            resamples=options.resamples,
            rng=np.random.default_rng(seed),
        )
        for metric in sample.values:
            found = _rates(same, sample, metric, cells, drawn)
            if isinstance(found, HeldOutLeftOut):
                left_out.append(found)
            else:
                rates += found
    if not rates:
        raise InsufficientDataError(
            f"Selection {name!r} holds too few windows that {version.version} judges.",
            why="No kind of window, scene and volume band of it has a line."
            if all(each.why == NO_LINE for each in left_out)
            else f"No kind of window has {MINIMUM_UNITS} units; the most have"
            f" {max(each.units for each in left_out if each.why == FEW_UNITS)}.",
            next_step="Choose a longer span, or traffic like the baseline's.",
        )
    return HeldOut(
        version=version.version, baseline=name, rates=tuple(rates), left_out=tuple(left_out)
    )


class _Cell(NamedTuple):
    """Windows that one key's lines judge.

    Attributes:
        lines: By metric.
        band: Volume band.
        tried: bool [W], of the held-out sample.
        behind: bool [W], of the calibration sample: what the lines were made from.
    """

    lines: Mapping[str, MetricLines]
    band: str
    tried: NDArray[np.bool_]
    behind: NDArray[np.bool_]


def _rates(
    calibrated: Sample,
    held_out: Sample,
    metric: str,
    cells: Sequence[_Cell],
    drawn: TwoSamples,
) -> list[HeldOutRate] | HeldOutLeftOut:
    """Rates past warn and past red lines of one metric, over all cells."""
    side = BY_NAME[metric].side
    offset = int(calibrated.units.max()) + 1
    judged_by: list[JudgedBy] = []
    past, judged = dict.fromkeys(LINES, 0.0), dict.fromkeys(LINES, 0.0)
    used = {line: np.zeros(len(held_out.windows), np.bool_) for line in LINES}
    for each in cells:
        lines = each.lines.get(metric)
        if lines is None:
            continue
        before, member = each.behind, each.tried
        values = held_out.values[metric][member]
        weight = held_out.windows.weight[member]
        for line in LINES:
            over, known = _past(values, lines, line)
            past[line] += float((over * weight[:, None]).sum())
            judged[line] += float((known * weight[:, None]).sum())
            used[line][member] |= known.any(axis=1)
        judged_by.append(
            JudgedBy(
                lines,
                each.band,
                np.concatenate([calibrated.values[metric][before], values]),
                np.concatenate([calibrated.windows.weight[before], weight]),
                np.concatenate([calibrated.units[before], held_out.units[member] + offset]),
            )
        )
    units_out = {line: len(np.unique(held_out.units[used[line]])) for line in LINES}
    most = max(units_out.values())
    if most < MINIMUM_UNITS:
        return _left_out(held_out, metric, most, FEW_UNITS if most else NO_LINE)
    present = np.unique(np.concatenate([each.units for each in judged_by]))
    signs = {Side.HIGH: (1.0,), Side.LOW: (-1.0,), Side.BOTH: (1.0, -1.0)}[side]
    pools = [pool for sign in signs for pool in pools_of(judged_by, sign)]
    bands = rate_bands(pools, drawn, list(LINES.values()), sides=len(signs))
    w = held_out.windows
    found = []
    for (line, share), band in zip(LINES.items(), bands, strict=True):
        if units_out[line] < MINIMUM_UNITS:
            continue
        rate = past[line] / judged[line]
        found.append(
            HeldOutRate(
                phase=w.phase,
                window_kind=w.kind,
                size=w.size,
                stride=w.stride,
                scope_kind=w.scope_kind,
                metric=metric,
                line=line,
                nominal=round((1.0 - share) * len(signs), 6),
                rate=rate,
                low=band.low,
                high=band.high,
                inside=band.low <= rate <= band.high,
                windows=int(used[line].sum()),
                units=units_out[line],
                calibration_units=int((present < offset).sum()),
            )
        )
    return found


def _left_out(sample: Sample, metric: str, units: int, why: str) -> HeldOutLeftOut:
    w = sample.windows
    return HeldOutLeftOut(
        phase=w.phase,
        window_kind=w.kind,
        size=w.size,
        stride=w.stride,
        scope_kind=w.scope_kind,
        metric=metric,
        units=units,
        why=why,
    )


def _past(
    values: NDArray[np.float64], lines: MetricLines, line: str
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which values are past the line, and which have one, bool [W, L] each."""
    high, low = getattr(lines, f"{line}_high"), getattr(lines, f"{line}_low")
    known = ~np.isnan(values) & ~(np.isnan(high) & np.isnan(low))
    return ((values > high) | (values < low)) & known, known


def _judged_cells(version: ThresholdVersion, calibrated: Sample, held_out: Sample) -> list[_Cell]:
    """Windows by the key that window closing looks lines up with."""
    scenes, bands = held_out.scenes, held_out.windows.band
    found = []
    for scene, band in sorted(set(zip(scenes.tolist(), bands.tolist(), strict=True))):
        key = held_out.key(scene, band)
        lines = version.lines_for(key)
        if lines:
            tried = (scenes == scene) & (bands == band)
            found.append(_Cell(lines, band, tried, _members(version, calibrated, key)))
    return found


def _members(version: ThresholdVersion, sample: Sample, key: LineKey) -> NDArray[np.bool_]:
    """Calibration windows behind the lines of a key."""
    here: NDArray[np.bool_] = sample.windows.band == key.band
    own = version.lines.get(key)
    return here & (sample.scenes == key.scene) if own and key.scene else here
