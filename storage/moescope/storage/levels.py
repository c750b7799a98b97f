"""Levels of window rows: what thresholds say, unless the window says too little itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from moescope.core.metrics import JUDGED_METRICS
from moescope.core.tables import LevelReason
from moescope.core.vocabulary import Level, WindowKind
from moescope.storage.columns import chosen, empty_lists

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from moescope.core.emission import FinishedWindows

Kept = tuple["FinishedWindows", "NDArray[np.bool_]"]
"""A finished group, and which of its windows to store: bool [W]."""

_LEVELS = (Level.HEALTHY, Level.WARN, Level.RED, Level.INSUFFICIENT)
_REASONS = (
    LevelReason.COVERAGE_UNKNOWN,
    LevelReason.COVERAGE,
    LevelReason.PARTIAL,
    LevelReason.SUSPICIOUS_ROWS,
    LevelReason.NO_THRESHOLD,
    LevelReason.NO_LINE,
    None,
)
_ENOUGH = _REASONS.index(None)
_NAMES = pa.array([metric.name for metric in JUDGED_METRICS])
_BITS = np.arange(len(JUDGED_METRICS), dtype=np.uint64)
_ALERTING = np.uint64(sum(1 << bit for bit, metric in enumerate(JUDGED_METRICS) if metric.alerts))
"""Bits of the metrics that decide a level; the others inform."""

COVERED: Final = (
    "(level_reason IS NULL OR level_reason NOT IN ("
    + ", ".join(
        f"'{reason}'"
        for reason in (LevelReason.COVERAGE_UNKNOWN, LevelReason.COVERAGE, LevelReason.PARTIAL)
    )
    + "))"
)
"""SQL: rows of `windows` that saw enough, as `WindowGroup.is_covered` tells it of a group."""


def level_columns(parts: Sequence[Kept], minimum_coverage: float) -> dict[str, pa.Array]:
    """Columns of `windows` that say how a row was judged.

    Args:
        parts: Finished groups of one lane.
        minimum_coverage: Below it a window says too little, and so does a layer of it at which
            fewer tokens are counted.

    Returns:
        Σ kept × L rows each.
    """
    layers = len(parts[0][0].group.lane.layers)
    too_little = np.concatenate(
        [_too_little(finished, minimum_coverage)[mask].reshape(-1) for finished, mask in parts]
    )
    versions = [
        version or None
        for finished, mask in parts
        for version in _versions(finished)[mask].tolist()
    ]
    in_force = np.array([version is not None for version in versions], np.bool_).repeat(layers)
    judged, warn, red = (_bits(parts, name) for name in ("judged", "warn", "red"))
    reasons = np.select(
        [too_little != _ENOUGH, ~in_force, (judged & _ALERTING) == 0],
        [too_little, _REASONS.index(LevelReason.NO_THRESHOLD), _REASONS.index(LevelReason.NO_LINE)],
        default=_ENOUGH,
    ).astype(np.int32)
    levels = np.select(
        [reasons != _ENOUGH, (red & _ALERTING) != 0, (warn & _ALERTING) != 0],
        [_LEVELS.index(level) for level in (Level.INSUFFICIENT, Level.RED, Level.WARN)],
        default=_LEVELS.index(Level.HEALTHY),
    ).astype(np.int32)
    window = np.arange(len(versions), dtype=np.int32).repeat(layers)
    return {
        "level": chosen(_LEVELS, levels),
        "level_reason": chosen(_REASONS, reasons),
        "warn_metrics": _metric_lists(warn),
        "red_metrics": _metric_lists(red),
        "threshold_version": chosen(versions, window),
    }


def _too_little(finished: FinishedWindows, minimum_coverage: float) -> NDArray[np.int32]:
    """Index into `_REASONS` of why a window says too little at a layer, [W, L]; the first."""
    group = finished.group
    partial = ~group.complete & (group.kind is WindowKind.TOKEN)
    counted = finished.tokens / np.maximum(group.expected, 1)[:, None]
    of_windows = (
        (LevelReason.COVERAGE_UNKNOWN, group.unknown_gap),
        (LevelReason.COVERAGE, group.coverage < minimum_coverage),
        (LevelReason.PARTIAL, partial),
    )
    return np.select(
        [*(applies[:, None] for _, applies in of_windows), counted < minimum_coverage],
        [
            *(_REASONS.index(reason) for reason, _ in of_windows),
            _REASONS.index(LevelReason.SUSPICIOUS_ROWS),
        ],
        default=_ENOUGH,
    ).astype(np.int32)


def _versions(finished: FinishedWindows) -> NDArray[np.object_]:
    if finished.judgement is None:
        return np.full(len(finished.group), "", np.object_)
    return np.array(finished.judgement.version, np.object_)


def _bits(parts: Sequence[Kept], name: str) -> NDArray[np.uint64]:
    """Bits per window and layer, one after the other."""
    found = []
    for finished, mask in parts:
        if finished.judgement is None:
            rows = int(mask.sum()) * len(finished.group.lane.layers)
            found.append(np.zeros(rows, np.uint64))
        else:
            found.append(getattr(finished.judgement, name)[mask].reshape(-1))
    return np.concatenate(found)


def _metric_lists(bits: NDArray[np.uint64]) -> pa.Array:
    """Names of the metrics whose bits are set, per row."""
    rows = np.flatnonzero(bits)
    if not len(rows):
        return empty_lists(len(bits))
    is_set = ((bits[rows, None] >> _BITS) & np.uint64(1)).astype(np.bool_)
    lengths = np.zeros(len(bits), np.int32)
    lengths[rows] = is_set.sum(axis=1)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), _NAMES.take(pa.array(is_set.nonzero()[1])))
