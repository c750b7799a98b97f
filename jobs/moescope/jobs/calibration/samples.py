"""From a baseline in the store to samples: units, shifts, and what was left out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from moescope.jobs.baselines import fired_spans, read_windows
from moescope.jobs.calibration.contamination import suspect_units
from moescope.jobs.calibration.references import (
    FoldedReference,
    cross_fitted_shifts,
    fold_reference,
    shifts_from,
)
from moescope.jobs.calibration.sample import Sample, sampling_units

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

    from moescope.core.thresholds import BaselineReference
    from moescope.jobs.baselines import Baseline, BaselineWindows, ModelShape, Span
    from moescope.jobs.calibration.options import CalibrationOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesRead:
    """What a baseline holds.

    Attributes:
        samples: Per kind of window.
        references: Phase → the reference made of everything.
        alert_spans: Times of alerts that were left out.
        suspects: Per kind of window, units that look foreign. trimmed: Whether they went.
    """

    samples: list[Sample]
    references: dict[str, BaselineReference]
    alert_spans: tuple[Span, ...]
    suspects: dict[tuple[str, str, int, int, str], int]
    trimmed: dict[tuple[str, str, int, int, str], bool]


def read_samples(
    cursor: duckdb.DuckDBPyConnection,
    baseline: Baseline,
    shape: ModelShape,
    options: CalibrationOptions,
) -> SamplesRead:
    """Read a baseline's windows, and work out what depends on the whole of it.

    Args:
        cursor: A connection for reading.
        baseline: The selection.
        shape: Of the model, from the scope.
        options: Blocks and coverage.
    """
    alerts = fired_spans(cursor, shape.lanes) if baseline.without_alerts else ()
    by_phase: dict[str, list[BaselineWindows]] = defaultdict(list)
    for windows in read_windows(
        cursor, baseline, shape, minimum_coverage=options.minimum_coverage, without=alerts
    ):
        by_phase[windows.phase].append(windows)
    read = SamplesRead(samples=[], references={}, alert_spans=alerts, suspects={}, trimmed={})
    for phase, kinds in by_phase.items():
        folded = fold_reference(kinds, shape.top_k, options.block_us)
        if folded is not None and folded.whole is not None:
            read.references[phase] = folded.whole
        for windows in kinds:
            sample = _sample(windows, folded, options.block_us)
            suspects = suspect_units(sample)
            kind = sample.key("", "")[:5]
            read.suspects[kind], read.trimmed[kind] = len(suspects.units), suspects.trimmed
            if suspects.trimmed:
                sample = _chosen(sample, ~np.isin(sample.units, suspects.units))
            read.samples.append(sample)
    return read


def _sample(windows: BaselineWindows, folded: FoldedReference | None, block_us: int) -> Sample:
    shifts = {} if folded is None else cross_fitted_shifts(windows, folded, block_us)
    return Sample(
        windows=windows,
        units=sampling_units(windows, block_us),
        values={**windows.values, **shifts},
    )


def shifted_by(sample: Sample, references: Mapping[str, BaselineReference]) -> Sample:
    """The sample with its shifts measured against given references, as window closing does."""
    reference = references.get(sample.windows.phase)
    if reference is None:
        return replace(sample, values=sample.windows.values)
    shifts = shifts_from(sample.windows, reference)
    return replace(sample, values={**sample.windows.values, **shifts})


def _chosen(sample: Sample, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Sample:
    w = sample.windows
    arrays = {
        name: getattr(w, name)[kept]
        for name in (
            "first_us", "last_us", "close_us", "weight", "scope_value", "request", "task", "node",
            "scene", "band", "lane", "counts",
        )
    }  # fmt: skip
    windows = replace(
        w,
        **arrays,
        scene_tokens=[mix for mix, keep in zip(w.scene_tokens, kept, strict=True) if keep],
        values={name: values[kept] for name, values in w.values.items()},
    )
    _, units = np.unique(sample.units[kept], return_inverse=True)
    values = {name: each[kept] for name, each in sample.values.items()}
    return Sample(windows=windows, units=units.reshape(-1).astype(np.int64), values=values)
