"""Threshold rows made by plain order statistics of stored windows: what reports can be tried on.

Real calibration resamples requests and blocks, and falls back where these are few; this takes every
stored window as it is.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from support.sample_store import MIDNIGHT_US

from moescope.core.metrics import JUDGED_METRICS, Side
from moescope.storage.control import insert_rows

if TYPE_CHECKING:
    import duckdb

KIND = "phase, window_kind, size, stride, scope_kind, scene, band, layer"
MINIMUM_WINDOWS = 30


def write_baseline(
    connection: duckdb.DuckDBPyConnection, selection: dict[str, Any], *, name: str = "default"
) -> None:
    """Insert version 1 of a baseline."""
    row = {
        "baseline": name, "version": 1, "created_at": MIDNIGHT_US, "author": "ada",
        "reason": "quiet night", "selection_json": json.dumps(selection),
    }  # fmt: skip
    insert_rows(connection, "baselines", [row], 1)


def write_calibration(
    connection: duckdb.DuckDBPyConnection,
    version: str,
    *,
    status: str = "draft",
    summary: dict[str, Any] | None = None,
    condition: str = "true",
) -> None:
    """Insert a version with lines for every kind of complete windows of the one stored scope.

    Args:
        connection: To the store.
        version: Its name.
        status: draft, active or retired.
        summary: What calibration wrote down.
        condition: In SQL: which windows it is made from.
    """
    scope = connection.execute(
        "SELECT DISTINCT model, revision, origin, fidelity, sampling_ratio, experts, top_k, layers"
        " FROM lanes"
    ).fetchall()
    assert len(scope) == 1
    names = (
        "model", "revision", "origin", "fidelity", "sampling_ratio", "experts", "top_k", "layers",
    )  # fmt: skip
    head = {
        "version": version, **dict(zip(names, scope[0], strict=True)), "baseline": "default",
        "baseline_version": 1, "created_at": MIDNIGHT_US, "author": "ada", "reason": "first lines",
        "status": status, "summary_json": json.dumps(summary or {}),
    }  # fmt: skip
    insert_rows(connection, "threshold_versions", [head], 1)
    rows = [row for metric in JUDGED_METRICS for row in _lines(connection, metric.name, condition)]
    insert_rows(connection, "thresholds", [{"version": version, **row} for row in rows], 1)


def write_activation(
    connection: duckdb.DuckDBPyConnection, number: int, version: str, from_us: int
) -> None:
    """Insert an activation of a stored version."""
    row = connection.execute(
        "SELECT model, revision, origin, fidelity, sampling_ratio FROM threshold_versions"
        " WHERE version = ?",
        [version],
    ).fetchone()
    assert row is not None
    names = ("model", "revision", "origin", "fidelity", "sampling_ratio")
    activation = {
        "activation": number, **dict(zip(names, row, strict=True)), "version": version,
        "effective_from_us": from_us, "activated_at": from_us, "action": "activate",
        "author": "ada", "reason": "looks right",
    }  # fmt: skip
    insert_rows(connection, "threshold_activations", [activation], 1)


def _lines(
    connection: duckdb.DuckDBPyConnection, metric: str, condition: str
) -> list[dict[str, Any]]:
    found = connection.execute(
        f"SELECT {KIND}, list({metric} ORDER BY {metric}),"
        " count(DISTINCT CASE WHEN request = '' THEN start // 10000000 ELSE hash(request) END)"
        f" FROM (SELECT * REPLACE ('' AS scene) FROM windows WHERE complete AND {condition})"
        f" WHERE {metric} IS NOT NULL GROUP BY ALL HAVING count(*) >= {MINIMUM_WINDOWS}"
    ).fetchall()
    (side,) = (each.side for each in JUDGED_METRICS if each.name == metric)
    columns = [name.strip() for name in KIND.split(",")]
    rows = []
    for *key, values, units in found:
        median = _at_rank(values, 0.5)
        spread = 1.4826 * _at_rank(sorted(abs(value - median) for value in values), 0.5)
        if not spread:
            continue
        row: dict[str, Any] = dict(zip(columns, key, strict=True)) | {
            "metric": metric, "side": str(side), "centre": median, "spread": spread,
            "units": units, "windows": len(values),
            "standing": "firm" if units >= 1000 else "provisional", "source": "own",
        }  # fmt: skip
        for level, share in (("warn", 0.9), ("red", 0.99)):
            for name, rank in (("high", share), ("low", 1 - share)):
                if side in {name, Side.BOTH}:
                    row |= _line(f"{level}_{name}", values, rank)
        rows.append(row)
    return rows


def _line(name: str, values: list[float], share: float) -> dict[str, float]:
    wide = 1.96 * math.sqrt(share * (1 - share) / len(values))
    return {
        name: _at_rank(values, share),
        f"{name}_from": _at_rank(values, max(0.0, share - wide)),
        f"{name}_to": _at_rank(values, min(1.0, share + wide)),
    }


def _at_rank(ordered: list[float], share: float) -> float:
    rank = min(max(math.ceil((len(ordered) + 1) * share), 1), len(ordered))
    return ordered[rank - 1]
