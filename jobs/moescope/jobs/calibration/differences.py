"""How lines moved from one version to the next, and whether a person should look first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from moescope.core.errors import InputError
from moescope.jobs.calibration.lines import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import duckdb

    from moescope.core.thresholds import LineKey
    from moescope.jobs.calibration.lines import EstimatedLines

LARGE_SHARE = 0.10
LARGE_ERRORS = 3.0
_Z = 1.959964
_SMALLEST = 1e-12


class LineChange(NamedTuple):
    """One line in two versions.

    Attributes:
        phase, window_kind, size, stride, scope_kind, scene, band, metric, layer: Which.
        line: `warn_low`, `warn_high`, `red_low` or `red_high`.
        before, after: NaN: no line in that version.
        standard_error: Of the newer one; NaN: unknown.
        moved: By more than max(10 %, 3 standard errors), or it is new or gone.
    """

    phase: str
    window_kind: str
    size: int
    stride: int
    scope_kind: str
    scene: str
    band: str
    metric: str
    layer: int
    line: str
    before: float
    after: float
    standard_error: float
    moved: bool


def standard_error(value: float, low: float, high: float) -> float:
    """Of a line, from its 95 % interval; from its lower half where there is no upper end."""
    if math.isfinite(low) and math.isfinite(high):
        return (high - low) / (2.0 * _Z)
    if math.isfinite(low):
        return (value - low) / _Z
    return (high - value) / _Z if math.isfinite(high) else math.nan


def has_moved(before: float, after: float, error: float) -> bool:
    """Whether a line moved by more than max(10 %, 3 standard errors)."""
    allowed = max(LARGE_SHARE * abs(before), LARGE_ERRORS * (0.0 if math.isnan(error) else error))
    return abs(after - before) > max(allowed, _SMALLEST)


_NAMES = (
    "phase", "window_kind", "size", "stride", "scope_kind", "scene", "band", "metric", "layer",
)  # fmt: skip


def diff(cursor: duckdb.DuckDBPyConnection, version_a: str, version_b: str) -> list[LineChange]:
    """Every line that differs between two stored versions, in order of key, metric and layer.

    Args:
        cursor: A connection for reading.
        version_a: The older one.
        version_b: The newer one.

    Raises:
        InputError: One of them is not stored.
    """
    before, after = (_stored_lines(cursor, name) for name in (version_a, version_b))
    return list(_changes(before, after))


def changes_against(
    cursor: duckdb.DuckDBPyConnection,
    version: str,
    lines: Mapping[LineKey, Mapping[str, EstimatedLines]],
    layers: Sequence[int],
) -> list[LineChange]:
    """The same for lines that are not stored yet."""
    after: _Lines = {}
    for key, metrics in lines.items():
        for metric, estimated in metrics.items():
            for place, layer in enumerate(layers):
                after[(*key, metric, layer)] = {
                    line: (
                        float(getattr(estimated.lines, line)[place]),
                        float(ends.low[place]),
                        float(ends.high[place]),
                    )
                    for line, ends in estimated.ends.items()
                }
    return list(_changes(_stored_lines(cursor, version), after))


_Lines = dict[tuple[Any, ...], dict[str, tuple[float, float, float]]]


def _stored_lines(cursor: duckdb.DuckDBPyConnection, version: str) -> _Lines:
    known = cursor.execute(
        "SELECT count(*) FROM threshold_versions WHERE version = ?", [version]
    ).fetchone()
    if not (known and known[0]):
        raise InputError(
            f"There is no threshold version {version!r}.",
            next_step="`moescope threshold list` shows the versions.",
        )
    columns = [f"{line}{part}" for line in LEVELS for part in ("", "_from", "_to")]
    rows = cursor.execute(
        f"SELECT {', '.join((*_NAMES, *columns))} FROM thresholds WHERE version = ?",
        [version],
    ).fetchall()
    found: _Lines = {}
    for row in rows:
        values = [math.nan if value is None else value for value in row[len(_NAMES) :]]
        found[row[: len(_NAMES)]] = {
            line: (values[3 * at], values[3 * at + 1], values[3 * at + 2])
            for at, line in enumerate(LEVELS)
        }
    return found


def _changes(before: _Lines, after: _Lines) -> Iterator[LineChange]:
    nothing = (math.nan, math.nan, math.nan)
    for key in sorted(before.keys() | after.keys()):
        for line in LEVELS:
            old = before.get(key, {}).get(line, nothing)[0]
            new, low, high = after.get(key, {}).get(line, nothing)
            if old == new or (math.isnan(old) and math.isnan(new)):
                continue
            error = standard_error(new, low, high)
            lone = math.isnan(old) or math.isnan(new)
            moved = lone or has_moved(old, new, error)
            yield LineChange._make((*key, line, old, new, error, moved))
