"""What a calibration writes down about itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from moescope.core.vocabulary import WindowKind
from moescope.jobs.calibration.sample import UNIT_OF, is_timed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moescope.core.thresholds import LineKey
    from moescope.jobs.calibration.differences import LineChange
    from moescope.jobs.calibration.lines import EstimatedLines
    from moescope.jobs.calibration.sample import Sample
    from moescope.jobs.calibration.samples import SamplesRead

_WORST_SHOWN = 20


def kind_facts(
    sample: Sample, estimated: Mapping[LineKey, Mapping[str, EstimatedLines]]
) -> dict[str, Any]:
    """Windows, units and span of one kind of window, and how many keys got lines."""
    w = sample.windows
    timed = is_timed(w)
    keys = [key for key, _ in sample.cells()]
    return {
        "phase": w.phase,
        "window_kind": w.kind,
        "size": w.size,
        "stride": w.stride,
        "scope_kind": w.scope_kind,
        "windows": len(w),
        "unit": str(UNIT_OF[WindowKind(w.kind)]),
        "units": sample.unit_count,
        "from_us": int(w.first_us[timed].min()) if timed.any() else None,
        "to_us": int(w.last_us[timed].max()) if timed.any() else None,
        "keys": len(keys),
        "keys_with_lines": sum(key in estimated for key in keys),
    }


def left_out_facts(read: SamplesRead) -> dict[str, Any]:
    """What was not used, and what looked foreign."""
    return {
        "phases": ["train"],
        "phases_why": "no run has enough units for a line",
        "alert_spans": [list(span) for span in read.alert_spans],
        "suspect_units": [
            {
                "phase": phase,
                "window_kind": kind,
                "size": size,
                "stride": stride,
                "scope_kind": scope_kind,
                "units": units,
                "trimmed": read.trimmed[phase, kind, size, stride, scope_kind],
            }
            for (phase, kind, size, stride, scope_kind), units in sorted(read.suspects.items())
            if units
        ],
    }


def guard_facts(against: str, changes: Sequence[LineChange], lines: int) -> dict[str, Any]:
    """How lines moved against the version in force."""
    moved = [change for change in changes if change.moved]
    worst = sorted(moved, key=_size_of_change, reverse=True)[:_WORST_SHOWN]
    return {
        "against": against,
        "lines": lines,
        "moved": len(moved),
        "held": bool(moved),
        "worst": [
            {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in change._asdict().items()
            }
            for change in worst
        ],
    }


def _size_of_change(change: LineChange) -> float:
    if math.isnan(change.before) or math.isnan(change.after):
        return math.inf
    return abs(change.after - change.before) / max(abs(change.before), 1e-12)
