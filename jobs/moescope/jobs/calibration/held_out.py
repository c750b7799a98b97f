"""Do lines hold on healthy windows that they were not made from?"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.errors import InputError, InsufficientDataError
from moescope.core.metrics import BY_NAME, Side
from moescope.core.thresholds import LineSource
from moescope.jobs.baselines import model_shape, read_baseline
from moescope.jobs.calibration.lines import RED_SHARE, WARN_SHARE
from moescope.jobs.calibration.options import CalibrationOptions
from moescope.jobs.calibration.samples import read_samples, shifted_by
from moescope.jobs.statistics import (
    MINIMUM_UNITS,
    Pool,
    TwoSamples,
    draw_two_samples,
    rate_band,
)
from moescope.storage.control import read_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    from numpy.typing import NDArray

    from moescope.core.thresholds import MetricLines, ThresholdVersion
    from moescope.jobs.baselines import Baseline
    from moescope.jobs.calibration.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRate:
    """How often one metric of one kind of window was past a line, over scenes, bands and layers.

    Attributes:
        line: `warn` or `red`.
        nominal: What a perfect line gives: 0.10 and 0.01 (a metric with two bad sides: twice).
        rate: Share of held-out (window, layer) pairs past the line.
        low, high: Where that share lies 95 times in 100 if nothing differs (`rate_band`).
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
class HeldOut:
    """Result of a held-out check.

    Attributes:
        version: Threshold version.
        baseline: Name of the held-out selection.
        rates: Per kind of window, metric and line.
    """

    version: str
    baseline: str
    rates: tuple[HeldOutRate, ...]

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
    for sample in held_out:
        same = by_kind.get(sample.key("", "")[:5])
        if same is None:
            continue
        drawn = draw_two_samples(
            np.unique(same.units),
            np.unique(sample.units) + same.units.max() + 1,
            resamples=options.resamples,
            rng=np.random.default_rng(seed),
        )
        for metric in sample.values:
            for line in ("warn", "red"):
                rate = _rate(version, same, sample, (metric, line), drawn)
                if rate is not None:
                    rates.append(rate)
    if not rates:
        raise InsufficientDataError(
            f"Selection {name!r} holds no windows that {version.version} judges.",
            why="No kind of window, scene and volume band of it has a line.",
            next_step="Choose a longer span, or traffic like the baseline's.",
        )
    return HeldOut(version=version.version, baseline=name, rates=tuple(rates))


def _rate(
    version: ThresholdVersion,
    calibrated: Sample,
    held_out: Sample,
    what: tuple[str, str],
    drawn: TwoSamples,
) -> HeldOutRate | None:
    metric, line = what
    side = BY_NAME[metric].side
    share = RED_SHARE if line == "red" else WARN_SHARE
    offset = int(calibrated.units.max()) + 1
    pools: list[list[Pool]] = [[], []]
    past, judged = 0.0, 0.0
    used = np.zeros(len(held_out.windows), np.bool_)
    for key, member in _judged_cells(version, held_out):
        lines = version.lines_for(key).get(metric)
        if lines is None:
            continue
        before = _members(version, calibrated, key)
        values = held_out.values[metric][member]
        weight = held_out.windows.weight[member]
        over, known = _past(values, lines, line)
        past += float((over * weight[:, None]).sum())
        judged += float((known * weight[:, None]).sum())
        used[member] |= known.any(axis=1)
        both = np.concatenate([calibrated.values[metric][before], values])
        weights = np.concatenate([calibrated.windows.weight[before], weight])
        units = np.concatenate([calibrated.units[before], held_out.units[member] + offset])
        if side is not Side.LOW:
            pools[0].extend(_pools(both, weights, units, lines, 1.0))
        if side is not Side.HIGH:
            pools[1].extend(_pools(both, weights, units, lines, -1.0))
    units_out = np.unique(held_out.units[used])
    if not judged or len(units_out) < MINIMUM_UNITS:
        return None
    sides = [pool for pool in pools if pool]
    present = np.unique(np.concatenate([pool.units for pool in sides[0]]))
    bands = [rate_band(pool, drawn, share) for pool in sides]
    low, high = (float(sum(band[end] for band in bands)) for end in (0, 1))
    rate = past / judged
    w = held_out.windows
    return HeldOutRate(
        phase=w.phase,
        window_kind=w.kind,
        size=w.size,
        stride=w.stride,
        scope_kind=w.scope_kind,
        metric=metric,
        line=line,
        nominal=round((1.0 - share) * len(sides), 6),
        rate=rate,
        low=low,
        high=high,
        inside=low <= rate <= high,
        windows=int(used.sum()),
        units=len(units_out),
        calibration_units=int((present < offset).sum()),
    )


def _past(
    values: NDArray[np.float64], lines: MetricLines, line: str
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which values are past the line, and which have one, bool [W, L] each."""
    high, low = getattr(lines, f"{line}_high"), getattr(lines, f"{line}_low")
    known = ~np.isnan(values) & ~(np.isnan(high) & np.isnan(low))
    return ((values > high) | (values < low)) & known, known


def _pools(
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    units: NDArray[np.int64],
    lines: MetricLines,
    sign: float,
) -> list[Pool]:
    """A pool per layer; one of standardised values where the layers shared their tail."""
    if lines.source in {LineSource.LAYER_BAND, LineSource.MODEL}:
        scaled = sign * (values - lines.centre) / lines.spread
        layers = values.shape[1]
        known = ~np.isnan(scaled).reshape(-1)
        flat = Pool(
            scaled.reshape(-1)[known],
            np.repeat(weights, layers)[known],
            np.repeat(units, layers)[known],
        )
        return [flat] if known.any() else []
    found = []
    for column in values.T:
        known = ~np.isnan(column)
        if known.any():
            found.append(Pool(sign * column[known], weights[known], units[known]))
    return found


def _judged_cells(version: ThresholdVersion, sample: Sample) -> list[tuple[Any, NDArray[np.bool_]]]:
    """Windows by the key that window closing looks lines up with."""
    pairs = sorted(set(zip(sample.scenes.tolist(), sample.windows.band.tolist(), strict=True)))
    keys = [sample.key(scene, band) for scene, band in pairs]
    return [
        (key, (sample.scenes == key.scene) & (sample.windows.band == key.band))
        for key in keys
        if version.lines_for(key)
    ]


def _members(version: ThresholdVersion, sample: Sample, key: Any) -> NDArray[np.bool_]:  # noqa: ANN401
    """Calibration windows behind the lines of a key."""
    here: NDArray[np.bool_] = sample.windows.band == key.band
    own = version.lines.get(key)
    return here & (sample.scenes == key.scene) if own and key.scene else here
