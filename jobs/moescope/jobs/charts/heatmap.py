"""Layers × windows: where in the model, and when, values come near their lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import altair as alt
import numpy as np
import polars as pl

from moescope.jobs.charts.indexed_png import data_url, indexed_png
from moescope.jobs.charts.marks import VALUE_FORMAT, layered
from moescope.jobs.charts.theme import RED, WARN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_Cell = TypeVar("_Cell", np.float64, np.int8)

MOST_COLUMNS = 1_000
MOST_MARKS = 500
ROW_HEIGHT = 8
LOWEST, HIGHEST = 96, 360
TICKS = 6
HEALTHY, WARNING, BEYOND = 0, 1, 2
"""Levels of cells: inside the lines, past warn, past red."""

_SHADES = 200
_WARN_INDEX, _RED_INDEX, _NOTHING = 200, 201, 255

# From pale to deep blue-grey: one hue, so that it reads without colour.
_PALE, _DEEP = (233, 239, 246), (63, 92, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Cells of a heatmap.

    Attributes:
        shares: float64 [layers, columns], 0 at the baseline's median and 1 at the red line; NaN
            where nothing was judged.
        levels: int8 [layers, columns], `HEALTHY`, `WARNING` or `BEYOND`.
        layers: Index of each row among all decoder layers.
        closed: When each column's first window closed, in words, in order.
        per_column: Windows that a column is the worst of.
    """

    shares: NDArray[np.float64]
    levels: NDArray[np.int8]
    layers: Sequence[int]
    closed: Sequence[str]
    per_column: int = 1

    def pooled(self, most_columns: int = MOST_COLUMNS) -> Field:
        """At most so many columns: each one the worst of neighbouring windows, per layer."""
        width = max(1, -(-self.shares.shape[1] // most_columns))
        if width == 1:
            return self
        return Field(
            shares=np.fmax.reduce(_cut(self.shares, width, np.nan), axis=2),
            levels=_cut(self.levels, width, HEALTHY).max(axis=2),
            layers=self.layers,
            closed=self.closed[::width],
            per_column=self.per_column * width,
        )


def heatmap_chart(field: Field, *, title: str) -> alt.LayerChart:
    """How far each window went from the median to its red line, by layer.

    Beyond `MOST_COLUMNS` windows each column is the worst of several, and the axis says so. Cells
    past a line are drawn into the image; the worst `MOST_MARKS` of them also answer to the
    pointer.

    Args:
        field: The cells.
        title: Which windows and metric.
    """
    field = field.pooled()
    rows, columns = field.shares.shape
    x_title = "Windows in order of closing time (UTC)"
    if field.per_column > 1:
        x_title += f"; each column is the worst of {field.per_column}"
    x = alt.X(
        "x:Q",
        title=x_title,
        axis=_ticks({column: field.closed[column] for column in range(columns)}, TICKS),
        scale=alt.Scale(domain=[0, columns], nice=False),
    )
    y = alt.Y(
        "y:Q",
        title="Layer",
        axis=_ticks({row + 0.5: str(layer) for row, layer in enumerate(field.layers)}, 12),
        scale=alt.Scale(domain=[rows, 0], nice=False),
    )
    image = (
        alt.Chart(pl.DataFrame({"x": [0], "y": [0], "url": [_image(field)]}))
        .mark_image(
            aspect=False, align="left", baseline="top", smooth=False, width={"expr": "width"},
            height={"expr": "height"},
        )
        .encode(x=x, y=y, url=alt.Url("url:N"))
    )  # fmt: skip
    names = ["past warn", "past red"]
    marks = (
        alt.Chart(_marks(field, names))
        .mark_rect(stroke=None)
        .encode(
            x=x,
            x2=alt.X2("x2:Q"),
            y=y,
            y2=alt.Y2("y2:Q"),
            color=alt.Color(
                "level:N", title=None, scale=alt.Scale(domain=names, range=[WARN, RED])
            ),
            tooltip=[
                alt.Tooltip("level:N", title="Level"),
                alt.Tooltip("layer:O", title="Layer"),
                alt.Tooltip("share:Q", title="Way to the red line", format=VALUE_FORMAT),
                alt.Tooltip("closed:N", title="Closed (UTC)"),
            ],
        )
    )
    return layered(
        image, marks, title=title, height=int(np.clip(rows * ROW_HEIGHT, LOWEST, HIGHEST))
    )


def _cut(cells: NDArray[_Cell], width: int, nothing: float) -> NDArray[_Cell]:
    rows, windows = cells.shape
    columns = -(-windows // width)
    padded = np.full((rows, columns * width), nothing, dtype=cells.dtype)
    padded[:, :windows] = cells
    return padded.reshape(rows, columns, width)


def _ticks(labels: dict[float, str], most: int) -> alt.Axis:
    step = max(1, -(-len(labels) // most))
    shown = dict(list(labels.items())[::step])
    pairs = ", ".join(f"'{position:g}': {text!a}" for position, text in shown.items())
    return alt.Axis(
        values=list(shown), labelExpr=f"({{{pairs}}})[format(datum.value, '~f')] || ''", grid=False
    )


def _image(field: Field) -> str:
    known = np.isfinite(field.shares)
    shade = np.clip(np.where(known, field.shares, 0.0), 0.0, 1.0) * (_SHADES - 1)
    cells = np.where(known, shade, _NOTHING).astype(np.uint8)
    cells[known & (field.levels == WARNING)] = _WARN_INDEX
    cells[known & (field.levels == BEYOND)] = _RED_INDEX
    palette = np.zeros((_NOTHING + 1, 3), int)
    palette[:_SHADES] = np.linspace(_PALE, _DEEP, _SHADES).round()
    palette[_WARN_INDEX], palette[_RED_INDEX] = _rgb(WARN), _rgb(RED)
    return data_url(
        indexed_png(cells, [(r, g, b) for r, g, b in palette.tolist()], transparent=_NOTHING)
    )


def _marks(field: Field, names: Sequence[str]) -> pl.DataFrame:
    shares, levels = field.shares, field.levels
    row, column = np.nonzero((levels != HEALTHY) & np.isfinite(shares))
    worst_first = np.lexsort((column, row, -shares[row, column], -levels[row, column]))
    row, column = row[worst_first[:MOST_MARKS]], column[worst_first[:MOST_MARKS]]
    return pl.DataFrame(
        {
            "x": column,
            "x2": column + 1,
            "y": row,
            "y2": row + 1,
            "layer": np.asarray(field.layers, int)[row],
            "share": shares[row, column].round(2),
            "level": [names[level - 1] for level in levels[row, column].tolist()],
            "closed": [field.closed[each] for each in column.tolist()],
        }
    )


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
