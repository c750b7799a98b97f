"""Per window the share of layers in which a metric is past its red line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from moescope.storage.levels import COVERED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import duckdb

METRICS = (
    "positional_agreement",
    "request_similarity",
    "routing_shift",
    "mix_shift",
)
"""Metrics that detectors over time windows look at."""

HALF = 0.5


class Series(NamedTuple):
    """Time windows that follow each other."""

    lane: str
    phase: str
    scope_kind: str
    scope_value: str
    size: int


@dataclass(frozen=True, slots=True)
class WindowShares:
    """One time window.

    Attributes:
        begin_us: Its start.
        red: Metric → share of its layers that are past their red line.
        mean: Metric → mean over its layers; absent where it is null everywhere.
    """

    begin_us: int
    red: Mapping[str, float]
    mean: Mapping[str, float]

    def is_red(self, metric: str) -> bool:
        """Whether at least half of the layers are."""
        return self.red[metric] >= HALF


def window_shares(
    cursor: duckdb.DuckDBPyConnection, from_us: int, to_us: int
) -> Iterator[tuple[Series, list[WindowShares]]]:
    """Judged time windows that saw enough and closed in a span of event time, by series.

    Args:
        cursor: For reading.
        from_us: Earliest close time.
        to_us: First close time that is left out.
    """
    reds = ", ".join(
        f"avg(list_contains(red_metrics, '{metric}')::INT) AS red_{metric}" for metric in METRICS
    )
    means = ", ".join(f"avg({metric}) AS mean_{metric}" for metric in METRICS)
    rows = cursor.execute(
        f"""
        SELECT lane, phase, scope_kind, scope_value, size, start, {reds}, {means}
        FROM windows
        WHERE window_kind = 'time' AND threshold_version IS NOT NULL AND {COVERED}
            AND close_time >= make_timestamp(?) AND close_time < make_timestamp(?)
        GROUP BY ALL ORDER BY ALL
        """,
        [from_us, to_us],
    ).fetchall()
    return _by_series(rows)


def _by_series(rows: Iterable[tuple[object, ...]]) -> Iterator[tuple[Series, list[WindowShares]]]:
    found: dict[Series, list[WindowShares]] = {}
    for lane, phase, scope_kind, scope_value, size, start, *values in rows:
        series = Series(str(lane), str(phase), str(scope_kind), str(scope_value), int(str(size)))
        reds, means = values[: len(METRICS)], values[len(METRICS) :]
        found.setdefault(series, []).append(
            WindowShares(
                int(str(start)),
                dict(zip(METRICS, (float(str(red)) for red in reds), strict=True)),
                {
                    metric: float(str(mean))
                    for metric, mean in zip(METRICS, means, strict=True)
                    if mean is not None
                },
            )
        )
    return iter(found.items())
