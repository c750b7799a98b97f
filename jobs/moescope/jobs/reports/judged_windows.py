"""Stored windows of a baseline beside the lines that would judge them, kind by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from moescope.core.metrics import BY_NAME, Reference
from moescope.jobs.reports.rows import SCOPE, fetch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb
    import pyarrow as pa
    from numpy.typing import NDArray

    from moescope.jobs.reports.rows import Head, Key
    from moescope.jobs.reports.sections import Kind

_KIND = ("phase", "window_kind", "size", "stride", "scope_kind")
_SCENE = "CASE WHEN w.scope_kind = 'scene' THEN w.scope_value ELSE w.scene END"
_NUMBERS = ("warn_low", "warn_high", "red_low", "red_high", "centre")


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


class JudgedRows(NamedTuple):
    """Rows (windows × layers) of a kind that have a value and a line of one metric.

    Attributes:
        row: int64 [N], place among the kind's rows.
        value: float64 [N].
        level: int8 [N]: past warn 1, past red 2.
        way: float64 [N], 0 at the baseline's median and 1 at the red line; NaN: unknown.
    """

    row: NDArray[np.int64]
    value: NDArray[np.float64]
    level: NDArray[np.int8]
    way: NDArray[np.float64]


class Judged:
    """Windows of a selection, judged by a version's lines.

    A window is judged as when it closes: by the lines of its scene where there are some, else by
    those of any scenes; past a line is strictly past. Rows stand for as many windows as their
    weight says.

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
            f"SELECT min(w.first_time), max(w.last_time) FROM windows w"
            f" WHERE {scope} AND {self._selection.condition}",
            [*self._head.scope, *self._selection.parameters],
        )[0]
        return first, last

    def read(self, kind: Kind, metrics: Sequence[str]) -> KindWindows:
        """All windows of one kind with their values of some metrics, in one pass of the table."""
        scope = " AND ".join(f"w.{column} = ?" for column in (*SCOPE, *_KIND))
        values = ", ".join(f"w.{BY_NAME[metric].name}" for metric in metrics)
        found = self._cursor.sql(
            f"SELECT w.layer, {_SCENE} AS window_scene, w.band, w.weight, w.lane, w.node,"
            " w.scope_value, w.start, w.request, w.close_time,"
            " coalesce(w.threshold_version = ?, false) AS of_this_version,"
            f" {values} FROM windows w WHERE {scope} AND w.weight > 0"
            f" AND {self._selection.condition}",
            params=[self._head.version, *self._head.scope, *kind, *self._selection.parameters],
        )
        lines = fetch(
            self._cursor,
            f"SELECT metric, scene, band, layer, {', '.join(_NUMBERS)} FROM thresholds"
            f" WHERE version = ? AND {' AND '.join(f'{name} = ?' for name in _KIND)}",
            [self._head.version, *kind],
        )
        return KindWindows(kind, found.to_arrow_table(), lines, self._head.layers)


class KindWindows:
    """Windows of one kind; rows are windows × layers.

    Args:
        kind: Phase, kind, size, stride and scope kind.
        table: As `Judged.read` selects it.
        lines: Rows of `thresholds`: metric, scene, band, layer, and the numbers.
        layers: Of the model, rising.
    """

    def __init__(
        self,
        kind: Kind,
        table: pa.Table,
        lines: Sequence[tuple[Any, ...]],
        layers: Sequence[int],
    ) -> None:
        self._kind = kind
        self._table = table
        self.layers = list(layers)
        self._scene, self._scenes = _coded(table, "window_scene")
        self._band, self._bands = _coded(table, "band")
        self._layer = np.searchsorted(np.array(layers), table.column("layer").to_numpy())
        self._weight = table.column("weight").to_numpy()
        place = {layer: at for at, layer in enumerate(layers)}
        self._lines: dict[str, dict[tuple[str, str], NDArray[np.float64]]] = {}
        for metric, scene, band, layer, *numbers in lines:
            own = self._lines.setdefault(metric, {}).setdefault(
                (scene, band), np.full((len(layers), 1 + len(_NUMBERS)), np.nan)
            )
            own[place[layer]] = [1.0, *(np.nan if each is None else each for each in numbers)]

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._table.num_rows)

    @property
    def metrics(self) -> list[str]:
        """Metrics with a line for some of the windows."""
        return list(self._lines)

    def judged(self, metric: str) -> JudgedRows:
        """The rows that have a value and a line."""
        value = self._table.column(metric).to_numpy()
        known = ~np.isnan(value)
        # Distances from a baseline are from that of the version that judged.
        if BY_NAME[metric].reference is Reference.BASELINE:
            known &= self._table.column("of_this_version").to_numpy(zero_copy_only=False)
        lines, _ = self._lines_by_pair(metric)
        found = lines[self._scene, self._band, self._layer]
        row = np.flatnonzero(known & ~np.isnan(found[:, 0]))
        value = value[row]
        _, warn_low, warn_high, red_low, red_high, centre = found[row].T
        level = ((value > warn_high) | (value < warn_low)).astype(np.int8)
        level[(value > red_high) | (value < red_low)] = 2
        with np.errstate(invalid="ignore", divide="ignore"):
            ways = [
                np.where(red == centre, np.nan, (value - centre) / (red - centre))
                for red in (red_high, red_low)
            ]
        return JudgedRows(row, value, level, np.fmax(*ways))

    def rates(self, metric: str) -> list[LayerRate]:
        """By the key that judges: windows × layers judged, and the shares past warn and red."""
        rows = self.judged(metric)
        _, own = self._lines_by_pair(metric)
        at = rows.row
        scene = np.where(own[self._scene, self._band, self._layer][at], self._scene[at] + 1, 0)
        names = ["", *self._scenes]
        code = scene * len(self._bands) + self._band[at]
        sums = [np.bincount(code, self._weight[at] * (rows.level >= least)) for least in (0, 1, 2)]
        return [
            LayerRate(
                (
                    *self._kind,
                    names[each // len(self._bands)],
                    self._bands[each % len(self._bands)],
                ),
                *(sums[0][each], sums[1][each] / sums[0][each], sums[2][each] / sums[0][each]),
            )
            for each in np.flatnonzero(sums[0]).tolist()
        ]

    def values(
        self, rows: JudgedRows, key: Key, layer: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Values and weights of windows by the key and layer that they are wanted of.

        A key without a scene has the windows of all scenes, whichever lines judge them.
        """
        *_, scene, band = key
        at = rows.row
        here = np.array([band == each for each in self._bands], np.bool_)[self._band[at]]
        here &= self._layer[at] == self.layers.index(layer)
        if scene:
            here &= np.array([scene == each for each in self._scenes], np.bool_)[self._scene[at]]
        return rows.value[here], self._weight[at[here]]

    def columns(self, rows: JudgedRows) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Any]]:
        """Windows in order of closing: layer and column of each row, and each column's close."""
        names = ("close_time", "start", "request", "lane", "scope_value")
        table = self._table.select(names).take(rows.row)
        order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names]).to_numpy()
        begins = np.zeros(len(order), np.bool_)
        begins[:1] = True
        for name in names:
            codes, _ = _coded(table, name)
            begins[1:] |= codes[order][1:] != codes[order][:-1]
        column = np.empty(len(order), np.int64)
        column[order] = np.cumsum(begins) - 1
        closed = table.column("close_time").take(order[begins]).to_pylist()
        return self._layer[rows.row], column, closed

    def _lines_by_pair(self, metric: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Lines of windows by scene, band and layer; and whether these are the scene's own."""
        shape = (len(self._scenes), len(self._bands), len(self.layers))
        lines = np.full((*shape, 1 + len(_NUMBERS)), np.nan)
        own = np.zeros(shape, np.bool_)
        known: Mapping[tuple[str, str], NDArray[np.float64]] = self._lines.get(metric, {})
        for at, scene in enumerate(self._scenes):
            for place, band in enumerate(self._bands):
                if ("", band) in known:
                    lines[at, place] = known["", band]
                if scene and (scene, band) in known:
                    of_scene = known[scene, band]
                    there = ~np.isnan(of_scene[:, 0])
                    lines[at, place][there] = of_scene[there]
                    own[at, place] = there
        return lines, own


def _coded(table: pa.Table, name: str) -> tuple[NDArray[np.int64], list[Any]]:
    """A column as numbers, and what they stand for; null is a number of its own."""
    found = table.column(name).combine_chunks().dictionary_encode("encode")
    codes = found.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, found.dictionary.to_pylist()
