"""What several readers of the store share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from moescope.jobs.reports.schema import WindowsKey

if TYPE_CHECKING:
    import duckdb

KEY = ("phase", "window_kind", "size", "stride", "scope_kind", "scene", "band")
KEY_SQL = ", ".join(KEY)
SCOPE = ("model", "revision", "origin", "fidelity", "sampling_ratio")
DIGITS = 6
"""Significant digits of reported values."""

Key = tuple[str, str, int, int, str, str, str]


class Head(NamedTuple):
    """The row of `threshold_versions`, by column."""

    version: str
    model: str
    revision: str
    origin: str
    fidelity: str
    sampling_ratio: float
    layers: list[int]
    experts: int
    top_k: int
    baseline: str
    baseline_version: int
    created_at: Any
    author: str
    reason: str
    status: str
    summary_json: str

    @property
    def scope(self) -> tuple[str, str, str, str, float]:
        """What the version belongs to."""
        return self.model, self.revision, self.origin, self.fidelity, self.sampling_ratio


def windows_key(key: Key) -> WindowsKey:
    """A key with names."""
    phase, kind, size, stride, scope_kind, scene, band = key
    return WindowsKey(
        phase=phase,
        window_kind=kind,
        size=size,
        stride=stride,
        scope_kind=scope_kind,
        scene=scene,
        band=band,
    )


def plain_key(key: WindowsKey) -> Key:
    """A key without names, which sorts and hashes."""
    return (
        key["phase"],
        key["window_kind"],
        key["size"],
        key["stride"],
        key["scope_kind"],
        key["scene"],
        key["band"],
    )


def rounded(value: float | None) -> float | None:
    """A number as reported; null and NaN are null."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def fetch(
    cursor: duckdb.DuckDBPyConnection, sql: str, parameters: list[Any] | None = None
) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    rows: list[tuple[Any, ...]] = cursor.execute(sql, parameters or []).fetchall()
    return rows
