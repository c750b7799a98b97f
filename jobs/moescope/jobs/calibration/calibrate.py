"""One calibration: pure of writes, the same for the same windows and seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moescope.core.errors import InsufficientDataError
from moescope.core.thresholds import ThresholdVersion
from moescope.jobs.baselines import model_shape
from moescope.jobs.calibration.differences import LineChange, changes_against
from moescope.jobs.calibration.held_out import check_lines
from moescope.jobs.calibration.lines import lines_of
from moescope.jobs.calibration.options import CalibrationOptions
from moescope.jobs.calibration.paging_series import paging_series
from moescope.jobs.calibration.samples import read_samples, shifted_by
from moescope.jobs.calibration.summary import guard_facts, kind_facts, left_out_facts
from moescope.jobs.paging import solve_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

    from moescope.core.thresholds import LineKey, ThresholdScope
    from moescope.jobs.baselines import Baseline
    from moescope.jobs.calibration.lines import EstimatedLines
    from moescope.jobs.calibration.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Lines, references and rules that are not stored yet.

    Attributes:
        version: With an empty name.
        baseline: What it was made from, with its version.
        estimated: Its lines with intervals.
        changes: Lines that differ from the version in force; empty without one.
        against: That version; empty: none.
        summary: For people and reports; JSON values.
    """

    version: ThresholdVersion
    baseline: Baseline
    estimated: Mapping[LineKey, Mapping[str, EstimatedLines]]
    changes: tuple[LineChange, ...]
    against: str
    summary: Mapping[str, Any]

    @property
    def held(self) -> bool:
        """Whether lines moved so far that a person should approve before it judges."""
        return any(change.moved for change in self.changes)


def calibrate(
    cursor: duckdb.DuckDBPyConnection,
    baseline: Baseline,
    scope: ThresholdScope,
    *,
    options: CalibrationOptions | None = None,
    held_out: Baseline | None = None,
    seed: int = 0,
) -> Calibration:
    """Make lines, references and paging rules of one scope from a baseline.

    Args:
        cursor: A connection for reading.
        baseline: A stored baseline.
        scope: Model, revision, origin, fidelity and sampling ratio.
        options: The defaults of the settings, if not given.
        held_out: Healthy windows that are not in the baseline, to try the lines on.
        seed: Of the held-out check's resamples; nothing else is random.

    Raises:
        InsufficientDataError: No kind of window has enough units for a line.
    """
    options = options or CalibrationOptions()
    shape = model_shape(cursor, baseline, scope)
    read = read_samples(cursor, baseline, shape, options)
    estimated: dict[LineKey, dict[str, EstimatedLines]] = {}
    for sample in read.samples:
        estimated.update(lines_of(sample, options.minimum_units))
    if not estimated:
        raise _too_little(baseline, scope, read.samples, options.minimum_units)
    version = ThresholdVersion(
        version="",
        scope=scope,
        layers=shape.layers,
        experts=shape.experts,
        top_k=shape.top_k,
        lines={
            key: {metric: each.lines for metric, each in metrics.items()}
            for key, metrics in estimated.items()
        },
        references=read.references,
    )
    series = paging_series(read.samples, version, options.block_us)
    rules, missing = solve_all(series, options.budget_per_day)
    version = replace(version, paging=tuple(rules))
    against = version_in_force(cursor, scope)
    changes = changes_against(cursor, against, estimated, shape.layers) if against else []
    checked = None
    if held_out is not None:
        other = read_samples(cursor, held_out, model_shape(cursor, held_out, scope), options)
        tried = [shifted_by(sample, version.references) for sample in other.samples]
        checked = check_lines(
            version, read.samples, tried, held_out.name, options=options, seed=seed
        )
    summary = {
        "schema": 1,
        "baseline": {
            "name": baseline.name,
            "version": baseline.version,
            "selection": baseline.to_json(),
        },
        "block_us": options.block_us,
        "minimum_coverage": options.minimum_coverage,
        "minimum_units": options.minimum_units,
        "budget_per_day": options.budget_per_day,
        "seed": seed,
        "kinds": [kind_facts(sample, estimated) for sample in read.samples],
        "left_out": left_out_facts(read),
        "change_guard": guard_facts(against, changes, _count_lines(estimated)),
        "paging_missing": [
            {
                "phase": series[index].phase,
                "window_kind": series[index].kind,
                "size": series[index].size,
                "scope_kind": series[index].scope_kind,
                "family": str(series[index].family),
                "why": why,
            }
            for index, why in sorted(missing.items())
        ],
        "held_out": None if checked is None else checked.to_json(),
    }
    return Calibration(
        version=version,
        baseline=baseline,
        estimated=estimated,
        changes=tuple(changes),
        against=against,
        summary=summary,
    )


def version_in_force(cursor: duckdb.DuckDBPyConnection, scope: ThresholdScope) -> str:
    """The version that the newest activation of a scope names; empty: none."""
    own = " AND ".join(f"{name} = ${name}" for name in scope._fields)
    row = cursor.execute(
        f"SELECT version FROM threshold_activations WHERE {own}"
        " ORDER BY effective_from_us DESC, activation DESC LIMIT 1",
        scope._asdict(),
    ).fetchone()
    return row[0] if row else ""


def _count_lines(estimated: Mapping[LineKey, Mapping[str, EstimatedLines]]) -> int:
    return sum(
        len(each.ends) * len(each.windows)
        for metrics in estimated.values()
        for each in metrics.values()
    )


def _too_little(
    baseline: Baseline, scope: ThresholdScope, samples: list[Sample], minimum: int
) -> InsufficientDataError:
    what = f"Baseline {baseline.name!r} is too short for lines of {scope.model} {scope.revision}."
    if not samples:
        return InsufficientDataError(
            what,
            why="It holds no whole window of event time, prefill, decode or eval."
            if baseline.spans
            else "It holds no whole window of prefill, decode or eval.",
            next_step="Check its spans and what it leaves out.",
        )
    closest = max(samples, key=lambda sample: sample.unit_count)
    kind, units = kind_facts(closest, {}), closest.unit_count
    return InsufficientDataError(
        what,
        why=f"The most units have {kind['phase']} {kind['window_kind']} windows of {kind['size']}:"
        f" {units} of unit {kind['unit']}; {max(minimum - units, 1)} are missing to {minimum}"
        " of one volume band.",
        next_step="Choose longer spans, or shorter blocks (calibration.block) for time windows.",
    )
