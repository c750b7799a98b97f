"""`late_convergence`: later token windows of a generation against the lines of all windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moescope.jobs.patterns.finding import Finding
from moescope.jobs.patterns.stretches import Shown, stretches

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

MINUTE_US: Final = 60_000_000
FEWEST_REQUESTS: Final = 5
HALF: Final = 0.5

_LATER_WINDOWS = """
    WITH judged AS (
        SELECT lane, size, request, start, close_time,
            avg((list_contains(red_metrics, 'routing_shift')
                OR list_contains(red_metrics, 'router_entropy')
                OR list_contains(red_metrics, 'topk_overlap'))::INT) AS red,
            any_value(weight) AS weight
        FROM windows
        WHERE window_kind = 'token' AND phase = 'decode' AND complete AND size = stride
            AND threshold_version IS NOT NULL
            AND close_time >= make_timestamp(?) AND close_time < make_timestamp(?)
        GROUP BY lane, size, request, start, close_time
    ), begun AS (
        SELECT lane, size, request, min(start) AS first_start
        FROM windows WHERE window_kind = 'token' AND phase = 'decode' AND size = stride
        GROUP BY ALL
    )
    SELECT lane, size, epoch_us(date_trunc('minute', close_time)) AS minute,
        count(DISTINCT request) AS requests,
        count(DISTINCT request) FILTER (red >= 0.5) AS converged,
        count(*) AS windows, count(*) FILTER (red >= 0.5) AS red_windows
    FROM judged JOIN begun USING (lane, size, request)
    WHERE start > first_start
    GROUP BY ALL ORDER BY ALL
"""


def late_convergence_findings(
    cursor: duckdb.DuckDBPyConnection, from_us: int, to_us: int
) -> Iterator[Finding]:
    """Minutes in which most long generations have a red later window.

    Args:
        cursor: For reading.
        from_us: Earliest close time of windows.
        to_us: First close time of windows that is left out.
    """
    minutes: dict[tuple[str, int], list[tuple[int, int, int, int, int]]] = {}
    for lane, size, minute, *counted in cursor.execute(_LATER_WINDOWS, [from_us, to_us]).fetchall():
        minutes.setdefault((lane, size), []).append((minute, *counted))
    for (lane, size), rows in minutes.items():
        by_minute = {minute: counted for minute, *counted in rows}
        shown = [
            Shown(minute, minute + MINUTE_US, _strength(requests, converged))
            for minute, requests, converged, _, _ in rows
        ]
        for stretch in stretches(shown, 1, 1):
            requests, converged, windows, red_windows = by_minute[stretch.peak_us]
            yield Finding(
                pattern="late_convergence",
                lane=lane,
                phase="decode",
                scope_kind="all",
                scope_value="",
                window_kind="token",
                size=size,
                began_us=stretch.begin_us,
                ended_us=stretch.end_us,
                confidence=stretch.strength,
                evidence={
                    "minutes": stretch.windows,
                    "peak_start": stretch.peak_us,
                    "requests": requests,
                    "converged_requests": converged,
                    "later_windows": windows,
                    "red_later_windows": red_windows,
                },
            )


def _strength(requests: int, converged: int) -> float:
    share = converged / requests
    return share if requests >= FEWEST_REQUESTS and share >= HALF else 0.0
