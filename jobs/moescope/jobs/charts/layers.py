"""Lines of one metric over the layers of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from moescope.jobs.charts.marks import (
    SHAPES,
    VALUE_FORMAT,
    layered,
    line_colour,
    line_shape,
    side_title,
    value_title,
)

if TYPE_CHECKING:
    import polars as pl

HEIGHT = 240
CAP_WIDTH = 7


def layer_lines_chart(lines: pl.DataFrame, *, metric: str, title: str) -> alt.LayerChart:
    """Median, warn and red line per layer, each with its 95 % interval where it has one.

    Args:
        lines: `layer` (index among all decoder layers), `line` (`baseline median`,
            `held-out median`, `warn line` or `red line`), `value` in the metric's unit, and its
            interval `low`, `high`, which may be null.
        metric: Name in the registry.
        title: What the lines judge.
    """
    present = set(lines["line"].unique().to_list())
    names = [name for name in SHAPES if name in present]
    colour = line_colour(names)
    x = alt.X("layer:O", title="Layer", axis=alt.Axis(labelAngle=0))
    side = side_title(metric)
    y = alt.Y("value:Q", title=side, scale=alt.Scale(zero=False))
    base = alt.Chart(lines)
    intervals = base.mark_rule(strokeWidth=1.5, opacity=0.75).encode(
        x=x, y=alt.Y("low:Q", title=side), y2=alt.Y2("high:Q"), color=colour
    )
    caps = [
        base.mark_tick(orient="horizontal", size=CAP_WIDTH, thickness=1.5, opacity=0.75).encode(
            x=x, y=alt.Y(f"{end}:Q", title=side), color=colour
        )
        for end in ("low", "high")
    ]
    points = base.mark_point(filled=True, size=46, opacity=1).encode(
        x=x,
        y=y,
        color=colour,
        shape=line_shape(names),
        tooltip=[
            alt.Tooltip("layer:O", title="Layer"),
            alt.Tooltip("line:N", title="Line"),
            alt.Tooltip("value:Q", title=value_title(metric), format=VALUE_FORMAT),
            alt.Tooltip("low:Q", title="95 % interval from", format=VALUE_FORMAT),
            alt.Tooltip("high:Q", title="to", format=VALUE_FORMAT),
        ],
    )
    return layered(intervals, *caps, points, title=title, height=HEIGHT)
