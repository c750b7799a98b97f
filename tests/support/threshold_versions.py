"""Small threshold versions, and how to store and compare them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.thresholds import (
    LineKey,
    LineSource,
    MetricLines,
    Standing,
    ThresholdScope,
    ThresholdVersion,
)
from moescope.storage.control import insert_rows
from moescope.storage.threshold_rows import line_rows, paging_rows, reference_rows

if TYPE_CHECKING:
    import duckdb

    from moescope.core.emission import LaneKey


def small_version(name: str, lane: LaneKey, red_high: float = 0.5) -> ThresholdVersion:
    """Lines for `gini` of one kind of time window."""
    layers = len(lane.layers)
    lines = MetricLines(
        warn_low=np.full(layers, np.nan), warn_high=np.full(layers, red_high / 2),
        red_low=np.full(layers, np.nan), red_high=np.full(layers, red_high),
        centre=np.full(layers, 0.1), spread=np.full(layers, 0.05),
        standing=Standing.FIRM, source=LineSource.OWN, units=2000,
    )  # fmt: skip
    return ThresholdVersion(
        version=name, scope=ThresholdScope.of(lane), layers=lane.layers, experts=lane.experts,
        top_k=lane.top_k, references={},
        lines={LineKey("decode", "time", 1_000_000, 1_000_000, "all", "", "3:4"): {"gini": lines}},
    )  # fmt: skip


def head_row(version: ThresholdVersion) -> dict[str, Any]:
    """Row of `threshold_versions`."""
    return {
        "version": version.version, **version.scope._asdict(), "layers": list(version.layers),
        "experts": version.experts, "top_k": version.top_k, "baseline": "b",
        "baseline_version": 1, "created_at": 0, "author": "me", "reason": "why",
        "status": "draft", "summary_json": "{}",
    }  # fmt: skip


def store_version(
    connection: duckdb.DuckDBPyConnection, version: ThresholdVersion, commit_id: int
) -> None:
    """Insert all rows of a version."""
    insert_rows(connection, "threshold_versions", [head_row(version)], commit_id)
    insert_rows(connection, "thresholds", list(line_rows(version)), commit_id)
    insert_rows(connection, "baseline_references", list(reference_rows(version)), commit_id)
    insert_rows(connection, "paging_rules", list(paging_rows(version)), commit_id)


def activation_row(
    number: int, scope: ThresholdScope, version: str, from_us: int
) -> dict[str, Any]:
    """Row of `threshold_activations`."""
    return {
        "activation": number, **scope._asdict(), "version": version,
        "effective_from_us": from_us, "activated_at": 0, "action": "activate", "author": "me",
        "reason": "why",
    }  # fmt: skip


def plain(version: ThresholdVersion) -> object:
    """The version as text-comparable values: NaN equals NaN, arrays are lists."""
    names = ("warn_low", "warn_high", "red_low", "red_high", "centre", "spread")
    return (
        version.version, version.scope, version.layers, version.experts, version.top_k,
        sorted(
            (
                tuple(key), metric, [repr(getattr(lines, name).tolist()) for name in names],
                lines.standing, lines.source, lines.units,
            )
            for key, metrics in version.lines.items()
            for metric, lines in metrics.items()
        ),
        sorted(
            (phase, scene, counts.tolist(), reference.tokens[scene])
            for phase, reference in version.references.items()
            for scene, counts in reference.scenes.items()
        ),
        sorted(version.paging, key=repr),
    )  # fmt: skip
