"""A calibration as rows: a draft that nothing changes any more."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moescope.core.clock import SystemClock
from moescope.storage.control import insert_rows, next_number
from moescope.storage.threshold_rows import line_rows, paging_rows, reference_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from moescope.core.clock import Clock
    from moescope.core.thresholds import ThresholdVersion
    from moescope.jobs.calibration.calibrate import Calibration
    from moescope.storage.store import Store


def store_calibration(
    store: Store,
    calibration: Calibration,
    *,
    author: str,
    reason: str,
    clock: Clock | None = None,
) -> str:
    """Store a calibration as a draft.

    Args:
        store: The owner's.
        calibration: From `calibrate`.
        author: Who.
        reason: Why.
        clock: For `created_at`.

    Returns:
        The new version's name.
    """
    now_us = (clock or SystemClock()).now_us()

    def change(connection: duckdb.DuckDBPyConnection, commit_id: int) -> str:
        name = f"t-{next_number(connection, 'threshold_versions', 'version')}"
        version = replace(calibration.version, version=name)
        head = {
            "version": name,
            **version.scope._asdict(),
            "layers": list(version.layers),
            "experts": version.experts,
            "top_k": version.top_k,
            "baseline": calibration.baseline.name,
            "baseline_version": calibration.baseline.version,
            "created_at": now_us,
            "author": author,
            "reason": reason,
            "status": "draft",
            "summary_json": json.dumps(calibration.summary, allow_nan=False),
        }
        insert_rows(connection, "threshold_versions", [head], commit_id)
        insert_rows(connection, "thresholds", list(_line_rows(calibration, version)), commit_id)
        insert_rows(connection, "baseline_references", list(reference_rows(version)), commit_id)
        insert_rows(connection, "paging_rules", list(paging_rows(version)), commit_id)
        return name

    return store.change(
        change,
        author=author,
        action="threshold calibrate",
        subject=calibration.baseline.name,
        reason=reason,
        detail={
            "baseline_version": calibration.baseline.version,
            **calibration.version.scope._asdict(),
        },
    )


def _line_rows(calibration: Calibration, version: ThresholdVersion) -> Iterator[dict[str, Any]]:
    """Rows of `thresholds`, intervals included; an interval without an end is null there."""
    place = {layer: at for at, layer in enumerate(version.layers)}
    keys = {tuple(key): key for key in version.lines}
    for row in line_rows(version):
        key = keys[
            row["phase"], row["window_kind"], row["size"], row["stride"], row["scope_kind"],
            row["scene"], row["band"],
        ]  # fmt: skip
        estimated, at = calibration.estimated[key][row["metric"]], place[row["layer"]]
        for line, ends in estimated.ends.items():
            row[f"{line}_from"], row[f"{line}_to"] = _finite(ends.low[at]), _finite(ends.high[at])
        yield {**row, "windows": int(estimated.windows[at])}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
