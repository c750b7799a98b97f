"""Stored windows of a baseline beside the lines that would judge them, in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from moescope.core.metrics import BY_NAME, Reference
from moescope.jobs.reports.rows import KEY, KEY_SQL, SCOPE, fetch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from moescope.jobs.reports.rows import Head, Key

_SAME = " AND ".join(
    f"t.{column} = w.{column}"
    for column in ("phase", "window_kind", "size", "stride", "scope_kind", "band", "layer")
)
_SCENE = "CASE WHEN w.scope_kind = 'scene' THEN w.scope_value ELSE w.scene END"
_OF_LINES = ("warn_low", "warn_high", "red_low", "red_high", "centre", "scene")


class Selection(NamedTuple):
    """Which stored windows are meant: a condition over `windows w`, and its parameters."""

    condition: str
    parameters: tuple[Any, ...]


class LayerRate(NamedTuple):
    """How often the windows of a key are past the lines of a metric."""

    key: Key
    windows: float
    warn: float
    red: float


class Judged:
    """Complete windows of a selection, judged by a version's lines.

    A window is judged as when it closes: by the lines of its scene where there are some, else by
    those of any scenes; past a line is strictly past. Rows stand for as many windows as their
    weight says; where token windows were sampled, those kept for being warn or red are left out,
    since the sample stands for them.

    Args:
        cursor: To the store.
        head: Of the version.
        selection: Which windows.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection, head: Head, selection: Selection) -> None:
        self._cursor = cursor
        self._head = head
        self._selection = selection

    def time_range(self) -> tuple[Any, Any]:
        """Event time of the first and the last row of the selection; None without times."""
        scope = " AND ".join(f"w.{column} = ?" for column in SCOPE)
        first, last = fetch(
            self._cursor,
            f"SELECT min(w.first_time), max(w.last_time) FROM windows w"  # noqa: S608 (constants)
            f" WHERE {scope} AND w.complete AND {self._selection.condition}",
            [*self._head.scope, *self._selection.parameters],
        )[0]
        return first, last

    def rates(self, metric: str) -> list[LayerRate]:
        """Per kind of windows: windows × layers judged, and the shares past warn and red."""
        sums = (
            f"SELECT {KEY_SQL}, sum(weight), sum(weight) FILTER (level > 0),"  # noqa: S608 (constants)
            f" sum(weight) FILTER (level > 1) FROM judged GROUP BY {KEY_SQL}"
        )
        rows = self._fetch(metric, sums)
        return [
            LayerRate(key, windows, (warn or 0) / windows, (red or 0) / windows)
            for *names, windows, warn, red in rows
            if windows and (key := _key(names))
        ]

    def values(
        self, metric: str, places: Sequence[tuple[Key, int]]
    ) -> dict[tuple[Key, int], list[tuple[float, float]]]:
        """(value, weight) of windows, by the key and layer that they are wanted of.

        A key without a scene has the windows of all scenes, whichever lines judge them.
        """
        one = "(" + ", ".join("?" * 8) + ")"
        same = " AND ".join(f"p.{name} = j.{name}" for name in (*KEY, "layer") if name != "scene")
        query = (
            f"SELECT {', '.join(f'p.{name}' for name in KEY)}, p.layer, list((value, weight))"  # noqa: S608
            f" FROM judged j JOIN (VALUES {', '.join([one] * len(places))})"
            f" p({KEY_SQL}, layer) ON {same} AND p.scene IN ('', j.window_scene) GROUP BY ALL"
        )
        wanted = [part for key, layer in places for part in (*key, layer)]
        found = {
            (_key(names), layer): pairs
            for *names, layer, pairs in self._fetch(metric, query, wanted)
        }
        return {place: found[place] for place in places if place in found}

    def cells(self, metric: str, kind: tuple[str, str, int, int, str]) -> list[tuple[Any, ...]]:
        """(close time, start, request, layer, way to the red line, level), in order of closing.

        Args:
            metric: Which.
            kind: Phase, kind, size, stride and scope kind.
        """
        return self._fetch(
            metric,
            "SELECT close_time, start, request, layer, way, level FROM judged"
            " WHERE (phase, window_kind, size, stride, scope_kind) = (?, ?, ?, ?, ?)"
            " ORDER BY close_time, start, request, layer",
            list(kind),
        )

    def _fetch(
        self, metric: str, query: str, parameters: list[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        name = BY_NAME[metric].name
        # Distances from a baseline are from that of the version that judged.
        baseline = BY_NAME[metric].reference is Reference.BASELINE
        of_this_version = "w.threshold_version = ?" if baseline else "true"
        scope = " AND ".join(f"w.{column} = ?" for column in SCOPE)
        either = ", ".join(
            f"CASE WHEN own.layer IS NULL THEN alls.{column} ELSE own.{column} END AS {column}"
            for column in _OF_LINES
        )
        sql = f"""
        WITH lines AS (SELECT * FROM thresholds WHERE version = ? AND metric = ?),
        compared AS (
            SELECT w.phase, w.window_kind, w.size, w.stride, w.scope_kind, w.band, w.layer,
                w.close_time, w.start, w.request, w.weight, w.{name} AS value,
                {_SCENE} AS window_scene, {either}
            FROM windows w
            LEFT JOIN (SELECT * FROM lines WHERE scene <> '') own
                ON {_SAME.replace("t.", "own.")} AND own.scene = {_SCENE}
            LEFT JOIN (SELECT * FROM lines WHERE scene = '') alls
                ON {_SAME.replace("t.", "alls.")}
            WHERE {scope} AND w.complete AND w.coverage IS NOT NULL AND w.weight > 0
                AND w.{name} IS NOT NULL AND {of_this_version} AND {self._selection.condition}
                AND (own.layer IS NOT NULL OR alls.layer IS NOT NULL)
            QUALIFY w.window_kind <> 'token' OR w.weight >= max(w.weight) OVER (
                PARTITION BY w.lane, w.node, w.phase, w.window_kind, w.size, w.stride,
                    time_bucket(INTERVAL 1 MINUTE, w.first_time)
            )
        ),
        judged AS (
            SELECT *,
                CASE
                    WHEN value > red_high OR value < red_low THEN 2
                    WHEN value > warn_high OR value < warn_low THEN 1
                    ELSE 0
                END AS level,
                greatest(
                    (value - centre) / nullif(red_high - centre, 0),
                    (value - centre) / nullif(red_low - centre, 0)
                ) AS way
            FROM compared
        )
        {query}
        """  # noqa: S608 (declared names)
        return fetch(
            self._cursor,
            sql,
            [
                self._head.version,
                metric,
                *self._head.scope,
                *([self._head.version] if baseline else []),
                *self._selection.parameters,
                *(parameters or []),
            ],
        )


def _key(names: list[Any]) -> Key:
    phase, kind, size, stride, scope_kind, scene, band = names
    return phase, kind, size, stride, scope_kind, scene, band
